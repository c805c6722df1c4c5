#include "launcher/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "checkpoint/file.h"
#include "core/check.h"
#include "device/memory_ledger.h"
#include "launcher/plan_model.h"
#include "zero/memory_plan.h"
#include "zerorun/config.h"

namespace zerorun {

namespace {

// A stage and what is offloaded.
struct Setting {
  int stage = 0;
  OffloadDevice optimizer = OffloadDevice::none;
  double ratio = 1.0;
  OffloadDevice param = OffloadDevice::none;
};

// What a setting needs: of each rank's device, and of each host.
struct Need {
  MemoryPlan plan;
  int64_t device = 0;
  int64_t host = 0;
  int64_t disk = 0;
};

struct Limits {
  std::optional<int64_t> device, host, disk;

  bool any() const { return device || host || disk; }
  bool allow(const Need& need) const {
    return need.device <= device.value_or(std::numeric_limits<int64_t>::max()) &&
           need.host <= host.value_or(std::numeric_limits<int64_t>::max()) &&
           need.disk <= disk.value_or(std::numeric_limits<int64_t>::max());
  }
};

std::string text_of(int64_t nbytes) {
  return nbytes == 0 ? "-" : format_bytes(static_cast<size_t>(nbytes));
}

const char* name_of(OffloadDevice device) {
  switch (device) {
    case OffloadDevice::none:
      return "none";
    case OffloadDevice::cpu:
      return "cpu";
    case OffloadDevice::nvme:
      return "nvme";
  }
  return "?";
}

std::string describe(const Setting& setting) {
  std::string text = fmt::format("stage {}", setting.stage);
  if (setting.optimizer != OffloadDevice::none) {
    text += fmt::format(", optimizer {}", name_of(setting.optimizer));
    if (setting.ratio < 1) text += fmt::format(" ratio {}", setting.ratio);
  }
  if (setting.param != OffloadDevice::none) {
    text += fmt::format(", parameters {}", name_of(setting.param));
  }
  return text;
}

// The rows of the table.
std::vector<Setting> all_settings() {
  std::vector<Setting> settings = {{0}, {1}, {2}, {3}};
  for (const OffloadDevice device : {OffloadDevice::cpu, OffloadDevice::nvme}) {
    for (int stage = 1; stage <= 3; ++stage) settings.push_back({stage, device});
    settings.push_back({3, device, 1.0, OffloadDevice::cpu});
  }
  return settings;
}

// From the fastest to the slowest: nothing offloaded; then as little as possible, in memory before
// on disk; a lower stage, which gathers less, before a higher one.
std::vector<Setting> by_speed() {
  std::vector<Setting> settings = {{1}, {2}, {3}};
  for (const double ratio : {0.25, 0.5, 0.75, 1.0}) {
    for (const int stage : {2, 3}) settings.push_back({stage, OffloadDevice::cpu, ratio});
  }
  settings.push_back({3, OffloadDevice::cpu, 1.0, OffloadDevice::cpu});
  for (const double ratio : {0.5, 1.0}) {
    for (const int stage : {2, 3}) settings.push_back({stage, OffloadDevice::nvme, ratio});
  }
  settings.push_back({3, OffloadDevice::nvme, 1.0, OffloadDevice::cpu});
  return settings;
}

class Planner {
 public:
  explicit Planner(const PlanOptions& options);

  std::string report() const;
  // Returns a line about what was written.
  std::string write_fit() const;

 private:
  Need need_of(const Setting& setting) const;
  Need need_of(const Config& config) const;
  std::string details() const;
  std::string table() const;
  int ranks_per_host() const {
    return options_.ranks_per_host > 0 ? options_.ranks_per_host : options_.world_size;
  }

  const PlanOptions& options_;
  PlanModel model_;
  Config config_;
  Limits limits_;
  int64_t activations_ = 0;
};

std::optional<int64_t> limit_of(const std::string& text, const std::string& option) {
  if (text.empty()) return std::nullopt;
  return parse_bytes(text, option);
}

Planner::Planner(const PlanOptions& options)
    : options_(options), model_(plan_model(options.model)) {
  ParsedConfig parsed;
  if (options.config.empty()) {
    parsed.config.zero.stage = 2;
    parsed.config.precision.param_dtype = DType::bf16;
  } else {
    parsed = load_config(options.config);
  }
  // The schedule's length does not matter here.
  resolve_auto(parsed, {.world_size = options.world_size,
                        .hidden_size = model_.hidden_size,
                        .total_steps = 1000,
                        .warmup_steps = 0});
  config_ = parsed.config;
  limits_ = {limit_of(options.device_memory, "--gpu_memory"),
             limit_of(options.host_memory, "--host_memory"), limit_of(options.disk, "--disk")};
  const int64_t micro_batch =
      options.micro_batch > 0 ? options.micro_batch : config_.batch.micro_batch_size;
  const double per_token =
      options.recompute ? model_.recomputed_nbytes_per_token : model_.activation_nbytes_per_token;
  activations_ =
      static_cast<int64_t>(per_token * static_cast<double>(micro_batch * options.seq_len));
}

Need Planner::need_of(const Config& config) const {
  Need need;
  need.plan = plan_memory(config, model_.specs, options_.world_size,
                          options_.cpu && ranks_per_host() == options_.world_size);
  need.device = need.plan.device() + activations_;
  need.host = need.plan.pinned * ranks_per_host();
  need.disk = need.plan.nvme * ranks_per_host();
  if (options_.cpu) {
    need.host += need.device * ranks_per_host();
    need.device = 0;
  }
  return need;
}

Need Planner::need_of(const Setting& setting) const {
  Config config = config_;
  config.zero.stage = setting.stage;
  config.offload.optimizer.device = setting.optimizer;
  config.offload.optimizer.ratio = setting.ratio;
  config.offload.param.device = setting.param;
  return need_of(config);
}

std::string Planner::details() const {
  const Need need = need_of(config_);
  const MemoryPlan& plan = need.plan;
  std::string text =
      fmt::format("{}; {} rank{}, {} per host\n", model_.description, options_.world_size,
                  options_.world_size == 1 ? "" : "s", ranks_per_host());
  text += fmt::format("{}: {}, {}\nbytes of a rank\n",
                      options_.config.empty() ? "the default" : options_.config,
                      describe({config_.zero.stage, config_.offload.optimizer.device,
                                config_.offload.optimizer.ratio, config_.offload.param.device}),
                      zerorun::name_of(config_.precision.param_dtype));
  const auto line = [&](std::string_view name, int64_t nbytes) {
    text += fmt::format("  {:<12} {:>12}\n", name, text_of(nbytes));
  };
  line("parameters", plan.parameters);
  line("gradients", plan.gradients);
  line("master", plan.masters);
  line("moments", plan.moments);
  line("buckets", plan.buckets);
  line("gathered", plan.gathered);
  line("activations", activations_);
  line("pinned", plan.pinned);
  line("nvme", plan.nvme);
  if (activations_ == 0) {
    text += model_.activation_nbytes_per_token > 0
                ? "  activations: give --seq_len (and --micro_batch) to count them\n"
                : "  activations are not counted: they are the model's own\n";
  }
  return text;
}

std::string Planner::table() const {
  std::string text = fmt::format("\n{:<42}{:>13}{:>13}{:>13}{}\n", "setting", "device/rank",
                                 "host/host", "disk/host", limits_.any() ? "  fits" : "");
  for (const Setting& setting : all_settings()) {
    const Need need = need_of(setting);
    text += fmt::format("{:<42}{:>13}{:>13}{:>13}{}\n", describe(setting), text_of(need.device),
                        text_of(need.host), text_of(need.disk),
                        limits_.any() ? limits_.allow(need) ? "  yes" : "  no" : "");
  }
  return text;
}

std::string Planner::report() const { return details() + table(); }

std::string Planner::write_fit() const {
  using Json = nlohmann::ordered_json;
  const std::string path = options_.nvme_path.empty()
                               ? config_.offload.optimizer.nvme_path.value_or("")
                               : options_.nvme_path;
  std::optional<Setting> fastest;
  for (const Setting& setting : by_speed()) {
    if (setting.optimizer == OffloadDevice::nvme && path.empty()) continue;
    if (limits_.allow(need_of(setting))) {
      fastest = setting;
      break;
    }
  }
  if (!fastest) {
    const Need least = need_of(by_speed().back());
    fail<ConfigError>(
        "--fit: nothing fits; the smallest, {}, needs {} of each device, {} of each host's memory "
        "and {} of its disk{}. Use more ranks, --recompute or a smaller --micro_batch",
        describe(by_speed().back()), text_of(least.device), text_of(least.host),
        text_of(least.disk), path.empty() ? " (and --nvme_path)" : "");
  }
  constexpr uint64_t kMaxNbytes = 16 << 20;
  Json json = options_.config.empty()
                  ? Json{{"bf16", {{"enabled", true}}}}
                  : Json::parse(read_text(options_.config, kMaxNbytes), nullptr, false, true);
  if (!json.is_object()) fail<ConfigError>("--fit: {} is not a JSON file", options_.config);
  Json& zero = json["zero_optimization"];
  if (!zero.is_object()) zero = Json::object();  // not there, or the older form, true or false
  for (const char* key : {"offload_optimizer", "offload_param", "cpu_offload", "cpu_offload_param",
                          "cpu_offload_use_pin_memory"}) {
    zero.erase(key);
  }
  zero["stage"] = fastest->stage;
  if (fastest->optimizer != OffloadDevice::none) {
    Json& offload = zero["offload_optimizer"];
    offload["device"] = name_of(fastest->optimizer);
    offload["ratio"] = fastest->ratio;
    if (fastest->optimizer == OffloadDevice::nvme) offload["nvme_path"] = path;
  }
  if (fastest->param != OffloadDevice::none) {
    zero["offload_param"]["device"] = name_of(fastest->param);
  }
  replace_text(options_.fit, json.dump(2) + "\n");
  return fmt::format("{}: {}\n", options_.fit, describe(*fastest));
}

}  // namespace

int64_t parse_bytes(const std::string& text, const std::string& option) {
  double number = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number);
  const std::string_view unit(end, static_cast<size_t>(last - end));
  constexpr double kKibi = 1024;
  const double factor = unit == "GiB" || unit == "G"   ? kKibi * kKibi * kKibi
                        : unit == "GB"                 ? 1e9
                        : unit == "TiB" || unit == "T" ? kKibi * kKibi * kKibi * kKibi
                        : unit == "TB"                 ? 1e12
                        : unit == "MiB" || unit == "M" ? kKibi * kKibi
                        : unit == "MB"                 ? 1e6
                        : unit.empty()                 ? 1.0
                                                       : 0.0;
  const double nbytes = number * factor;
  if (error != std::errc() || !(nbytes > 0) || nbytes > 1e18) {
    fail<ConfigError>("{} '{}': expected a size such as 80GB, 24GiB or 2TB", option, text);
  }
  return static_cast<int64_t>(nbytes);
}

std::string plan_report(const PlanOptions& options) {
  const Planner planner(options);
  const std::string written = options.fit.empty() ? "" : planner.write_fit();
  return written + planner.report();
}

}  // namespace zerorun
