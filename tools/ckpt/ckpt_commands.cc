#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "checkpoint/loading/checkpoint_reader.h"
#include "config/command_line.h"
#include "core/check.h"
#include "tools/ckpt/ckpt_report.h"
#include "tools/terminal/tool.h"

namespace zerorun {

namespace {

Format format_of(const CkptArguments& arguments) {
  return arguments.json ? Format::json : Format::text;
}

void add_json(CLI::App& tool, CkptArguments& arguments) {
  tool.add_flag("--json", arguments.json, "Print one JSON object, for use in scripts");
}

void add_directory(CLI::App& tool, CkptArguments& arguments) {
  AppOptions{tool}.text("DIR", arguments.path, "", "A checkpoint, or a folder of them")->required();
}

void check_folder(const std::string& path, const char* command) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return;
  fail<ConfigError>("zerorun ckpt {}: {}: {}", command, path,
                    error ? error.message() : "expected a folder");
}

void define_ls(CLI::App& ckpt, CkptArguments& arguments) {
  CLI::App* tool =
      add_tool(ckpt, "ls", "Lists checkpoints with their step, time, size and number of ranks",
               "Example:\n  zerorun ckpt ls out/train");
  add_directory(*tool, arguments);
  add_json(*tool, arguments);
  tool->callback([&arguments] {
    check_folder(arguments.path, "ls");
    print_text(list_checkpoints(arguments.path, format_of(arguments)));
  });
}

void define_show(CLI::App& ckpt, CkptArguments& arguments) {
  CLI::App* tool = add_tool(ckpt, "show",
                            "Shows a checkpoint's parameters with shapes, dtypes, states and norms",
                            "Examples:\n"
                            "  zerorun ckpt show out/train\n"
                            "  zerorun ckpt show out/train --tag step100 --no_norms");
  add_directory(*tool, arguments);
  AppOptions{*tool}.text("--tag", arguments.tag, "TAG",
                         "Tag of the checkpoint. Default: the latest");
  tool->add_flag("--no_norms", arguments.no_norms, "Do not read the values to compute norms");
  add_json(*tool, arguments);
  tool->callback([&arguments] {
    check_folder(arguments.path, "show");
    print_text(
        show_checkpoint(arguments.path, arguments.tag, !arguments.no_norms, format_of(arguments)));
  });
}

// Verifies with a progress bar for each checkpoint that takes long.
void verify(const std::string& path, const std::function<void(const std::string& line)>& report) {
  std::optional<ProgressBar> bar;
  std::string shown;
  verify_checkpoint(
      path,
      [&](const std::string& line) {
        bar.reset();
        report(line);
      },
      [&](const std::string& folder, uint64_t nbytes, uint64_t total) {
        if (folder != shown) bar.emplace("reading " + folder, total);
        shown = folder;
        bar->add(nbytes);
      });
}

// Prints damage in the JSON object, and also throws the error.
void verify_as_json(const std::string& path) {
  nlohmann::ordered_json json = {{"ok", true}, {"intact", nlohmann::ordered_json::array()}};
  const auto print_json = [&json] {
    print_line(json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  };
  try {
    verify(path, [&](const std::string& line) { json["intact"].push_back(line); });
  } catch (const Error& error) {
    json["ok"] = false;
    json["problem"] = error.what();
    print_json();
    throw;
  }
  print_json();
}

void define_verify(CLI::App& ckpt, CkptArguments& arguments) {
  CLI::App* tool =
      add_tool(ckpt, "verify", "Reads all bytes of checkpoints and checks their checksums",
               "Example:\n  zerorun ckpt verify out/train");
  add_directory(*tool, arguments);
  add_json(*tool, arguments);
  tool->callback([&arguments] {
    check_folder(arguments.path, "verify");
    if (arguments.json) return verify_as_json(arguments.path);
    verify(arguments.path, print_line);
  });
}

void define_diff(CLI::App& ckpt, CkptArguments& arguments) {
  CLI::App* tool = add_tool(ckpt, "diff", "Compares two checkpoints, parameter by parameter",
                            "Example:\n  zerorun ckpt diff out/train/step100 out/train/step200");
  AppOptions{*tool}
      .text("FIRST", arguments.path, "", "A checkpoint, or a folder of checkpoints: its latest")
      ->required();
  AppOptions{*tool}.text("SECOND", arguments.other, "", "Another checkpoint or folder")->required();
  add_json(*tool, arguments);
  tool->callback([&arguments] {
    for (const std::string& path : {arguments.path, arguments.other}) check_folder(path, "diff");
    print_text(compare_checkpoints(arguments.path, arguments.other, format_of(arguments)));
  });
}

void define_prune(CLI::App& ckpt, CkptArguments& arguments) {
  CLI::App* tool = add_tool(
      ckpt, "prune", "Removes old checkpoints; keeps the latest and those that it cannot read",
      "Examples:\n"
      "  zerorun ckpt prune out/train --keep_last 3 --dry_run\n"
      "  zerorun ckpt prune out/train --keep_last 3 --keep_every 1000");
  add_directory(*tool, arguments);
  AppOptions{*tool}
      .integer("--keep_last", arguments.keep.last, "N", 1, "Number of checkpoints to keep")
      ->required();
  AppOptions{*tool}.integer("--keep_every", arguments.keep.every, "N", 1,
                            "Also keep the checkpoints of every N-th step");
  tool->add_flag("--dry_run", arguments.dry_run, "Only print which checkpoints would be removed");
  add_json(*tool, arguments);
  tool->callback([&arguments] {
    check_folder(arguments.path, "prune");
    print_text(
        prune_checkpoints(arguments.path, arguments.keep, arguments.dry_run, format_of(arguments)));
  });
}

}  // namespace

void define_ckpt(CLI::App& tools, CkptArguments& arguments) {
  CLI::App* ckpt =
      add_tool(tools, "ckpt", "Lists, shows, verifies, compares, removes and converts checkpoints",
               "Examples:\n"
               "  zerorun ckpt ls out/train\n"
               "  zerorun ckpt verify out/train");
  ckpt->require_subcommand(1);
  define_ls(*ckpt, arguments);
  define_show(*ckpt, arguments);
  define_verify(*ckpt, arguments);
  define_diff(*ckpt, arguments);
  define_prune(*ckpt, arguments);
}

}  // namespace zerorun
