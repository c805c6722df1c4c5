#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/files/file.h"
#include "checkpoint/files/layout.h"
#include "checkpoint/loading/checkpoint_reader.h"
#include "core/check.h"
#include "core/printable.h"
#include "tools/ckpt/ckpt_report.h"
#include "tools/terminal/tool.h"

namespace zerorun {

namespace {

using Json = nlohmann::ordered_json;

// The facts that are shown of one parameter.
struct Row {
  SavedModel::Parameter parameter;
  DType trained_in = DType::fp32;
  std::vector<std::string> states;
  bool is_here = true;  // all of its values are on this disk
  std::optional<double> norm;
};

std::string values_of(const Row& row) {
  if (!row.parameter.alias_of.empty()) return "tied to " + printable(row.parameter.alias_of);
  if (!row.parameter.saved) return "frozen, not saved";
  if (!row.is_here) return row.parameter.trainable ? "on other hosts" : "on other hosts (frozen)";
  if (!row.norm) return row.parameter.trainable ? "" : "frozen";
  return fmt::format("{:.6g}{}", *row.norm, row.parameter.trainable ? "" : " (frozen)");
}

// By file: whether it is on this disk. With node-local storage others have their headers here.
std::vector<bool> files_here(const CheckpointReader& checkpoint) {
  std::vector<bool> here;
  for (const Manifest::ShardFile& file : checkpoint.manifest().shards) {
    here.push_back(path_exists(checkpoint.folder() / file.name));
  }
  return here;
}

bool has_all_values(const CheckpointReader& checkpoint, const std::vector<bool>& here, size_t i) {
  const Manifest::Parameter& saved = checkpoint.manifest().parameters[i];
  const int kind = saved.states.empty() ? CheckpointReader::kParam : 1 + saved.states.front();
  const auto records = checkpoint.records_of(static_cast<int>(i), kind, 0, saved.numel());
  return std::ranges::all_of(records, [&](const CheckpointReader::Record& record) {
    return here[static_cast<size_t>(record.shard)];
  });
}

std::vector<Row> rows_of(const CheckpointReader& checkpoint, const SavedModel& model, bool norms) {
  const Manifest& manifest = checkpoint.manifest();
  const std::vector<bool> here = files_here(checkpoint);
  const auto is_read = [](const Row& row) { return row.is_here && has_values(row.parameter); };
  uint64_t total = 0;
  std::vector<Row> rows;
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    Row row{.parameter = model.parameters()[i],
            .trained_in = manifest.parameters[i].dtype,
            .states = {},
            .is_here = has_all_values(checkpoint, here, i),
            .norm = {}};
    for (const int state : manifest.parameters[i].states) {
      row.states.push_back(manifest.states[static_cast<size_t>(state)].name);
    }
    if (is_read(row)) total += nbytes_of(row.parameter);
    rows.push_back(std::move(row));
  }
  ProgressBar bar("reading", total);
  for (size_t i = 0; norms && i < rows.size(); ++i) {
    if (!is_read(rows[i])) continue;
    rows[i].norm = SavedValues(model, i).norm();
    bar.add(nbytes_of(rows[i].parameter));
  }
  return rows;
}

Json to_json(const Row& row) {
  if (!row.parameter.alias_of.empty()) {
    return {{"name", row.parameter.name}, {"alias_of", row.parameter.alias_of}};
  }
  Json json = {{"name", row.parameter.name},       {"shape", row.parameter.shape},
               {"dtype", name_of(row.trained_in)}, {"trainable", row.parameter.trainable},
               {"saved", row.parameter.saved},     {"states", row.states}};
  if (!row.is_here) json["on_other_hosts"] = true;
  // JSON has no infinity.
  if (row.norm) json["norm"] = std::isfinite(*row.norm) ? Json(*row.norm) : Json(nullptr);
  return json;
}

std::string table_of(const std::vector<Row>& rows, bool norms) {
  size_t width = 9;
  size_t shape_width = 5;
  const auto shape_of = [](const Row& row) {
    return fmt::format("[{}]", fmt::join(row.parameter.shape, ", "));
  };
  for (const Row& row : rows) {
    width = std::max(width, printable(row.parameter.name).size());
    shape_width = std::max(shape_width, shape_of(row).size());
  }
  std::string text = fmt::format("\n{:<{}}  {:<{}}  {:<6} {:<34} {}\n", "parameter", width, "shape",
                                 shape_width, "dtype", "states", norms ? "norm" : "");
  for (const Row& row : rows) {
    const bool is_alias = !row.parameter.alias_of.empty();
    text += fmt::format("{:<{}}  {:<{}}  {:<6} {:<34} {}\n", printable(row.parameter.name), width,
                        is_alias ? "" : shape_of(row), shape_width,
                        is_alias ? "" : name_of(row.trained_in),
                        fmt::format("{}", fmt::join(row.states, " ")), values_of(row));
  }
  return text;
}

}  // namespace

std::string show_checkpoint(const std::string& directory, const std::string& tag, bool norms,
                            Format format) {
  const CheckpointReader checkpoint(find_checkpoint(directory, tag));
  const Manifest& manifest = checkpoint.manifest();
  const SavedModel model(directory, tag);
  const std::vector<Row> rows = rows_of(checkpoint, model, norms);
  if (format == Format::json) {
    Json json = {{"folder", checkpoint.folder().string()},
                 {"step", manifest.progress.step_count},
                 {"skipped_steps", manifest.progress.skipped_steps},
                 {"ranks", manifest.shards.size()},
                 {"zerorun", manifest.zerorun_version},
                 {"elements", manifest.numel()},
                 {"groups", Json::array()},
                 {"buffers", Json::array()},
                 {"parameters", Json::array()}};
    for (const ParameterGroup& group : manifest.groups) {
      json["groups"].push_back(
          {{"name", group.name}, {"lr", group.lr}, {"weight_decay", group.weight_decay}});
    }
    for (const HashedTensor& buffer : checkpoint.buffers()) {
      json["buffers"].push_back(
          {{"name", buffer.name}, {"dtype", buffer.dtype_name}, {"shape", buffer.shape}});
    }
    for (const Row& row : rows) json["parameters"].push_back(to_json(row));
    return json.dump(2, ' ', false, Json::error_handler_t::replace);
  }
  std::string text = fmt::format(
      "{}\nstep {}{}, saved by {} rank{} of zerorun {}\n{} parameters of {} elements, {} buffers\n",
      checkpoint.folder().string(), manifest.progress.step_count,
      manifest.progress.skipped_steps > 0
          ? fmt::format(" ({} skipped)", manifest.progress.skipped_steps)
          : "",
      manifest.shards.size(), manifest.shards.size() == 1 ? "" : "s",
      printable(manifest.zerorun_version), manifest.parameters.size(), manifest.numel(),
      checkpoint.buffers().size());
  for (const ParameterGroup& group : manifest.groups) {
    text += fmt::format("group '{}': lr {:g}, weight_decay {:g}\n", printable(group.name), group.lr,
                        group.weight_decay);
  }
  return text + table_of(rows, norms);
}

}  // namespace zerorun
