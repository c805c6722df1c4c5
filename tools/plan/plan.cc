#include "tools/plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "config/elasticity.h"
#include "config/json/reader.h"
#include "core/check.h"
#include "os/whole_file.h"
#include "tools/plan/simulation.h"
#include "tools/terminal/tool.h"
#include "zero/memory_plan.h"
#include "zero/partition/sharding.h"

namespace zerorun {

namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kTrainMicroBatch = 8;  // default micro-batch size of the bundled program

// The memory that a setting needs on each rank's device and on each host.
struct Need {
  MemoryPlan plan;
  int64_t snapshot = 0;  // memory of a rank for asynchronous saves
  int64_t device = 0;
  int64_t host = 0;
  int64_t disk = 0;
};

struct Limits {
  std::optional<int64_t> device, host, disk;

  bool any() const { return device || host || disk; }
  // Returns the maximum ratio of need to limit.
  double excess(const Need& need) const {
    const auto ratio = [](int64_t needed, const std::optional<int64_t>& limit) {
      return limit ? static_cast<double>(needed) / static_cast<double>(*limit) : 0.0;
    };
    return std::max({ratio(need.device, device), ratio(need.host, host), ratio(need.disk, disk)});
  }
  bool allow(const Need& need) const {
    return need.device <= device.value_or(std::numeric_limits<int64_t>::max()) &&
           need.host <= host.value_or(std::numeric_limits<int64_t>::max()) &&
           need.disk <= disk.value_or(std::numeric_limits<int64_t>::max());
  }
};

// Returns a * b. Throws ConfigError if the product exceeds 64 bits.
int64_t multiply(int64_t a, int64_t b) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) {
    fail<ConfigError>("plan: {} ranks with {} bytes each exceed 64 bits", b, a);
  }
  return product;
}

int64_t add(int64_t a, int64_t b) {
  int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) {
    fail<ConfigError>("plan: the sum of {} and {} bytes exceeds 64 bits", a, b);
  }
  return sum;
}

class Planner {
 public:
  Planner(const PlanOptions& options, ParsedConfig parsed);

  std::string report() const;
  std::string json() const;
  // Writes the file and returns a line about it.
  std::string write_fit() const;

 private:
  Need need_of(const Setting& setting) const;
  Need need_of(const Config& config) const;
  Setting fastest(const std::string& nvme_path) const;
  Json configuration(const Setting& setting, const std::string& nvme_path) const;
  std::string details() const;
  std::string groups() const;
  std::string table() const;
  int ranks_per_host() const {
    return options_.ranks_per_host > 0 ? std::min(options_.ranks_per_host, options_.world_size)
                                       : options_.world_size;
  }
  HostLayout layout() const { return {options_.world_size, ranks_per_host(), options_.cpu}; }

  const PlanOptions& options_;
  PlanModel model_;
  Config config_;
  Workload work_;
  Limits limits_;
  int64_t activations_ = 0;
  int64_t tokens_ = 0;                            // of a rank in a micro-step
  std::vector<std::string_view> without_effect_;  // keys without effect on one host
};

std::optional<int64_t> limit_of(const std::string& text, const std::string& option) {
  if (text.empty()) return std::nullopt;
  return parse_bytes(text, option);
}

ParsedConfig parsed_config(const PlanOptions& options) {
  if (!options.config.empty()) return load_config_for(ConfigReader::pytorch, options.config);
  ParsedConfig parsed;
  parsed.config.zero.stage = 2;
  parsed.config.precision.param_dtype = DType::bf16;
  parsed.config.source = "the default";
  return parsed;
}

Planner::Planner(const PlanOptions& options, ParsedConfig parsed)
    : options_(options),
      model_(plan_model(options.model,
                        options.cpu ? DType::fp32 : parsed.config.precision.param_dtype)),
      work_(workload_of(options, parsed.config)) {
  const bool is_bundled = model_.activation_nbytes_per_token > 0;
  BatchConfig& batch = parsed.config.batch;
  if (work_.micro_batch > 0) {
    batch.micro_batch_size = work_.micro_batch;
    if (batch.train_batch_size > 0) batch.accumulation_steps = 0;  // computed from the other two
  } else if (is_bundled && batch.micro_batch_size == 0 && batch.train_batch_size == 0 &&
             !elasticity_of(parsed).enabled) {
    batch.micro_batch_size = kTrainMicroBatch;
  }
  // The length of the schedule does not matter here.
  resolve_auto(parsed, {.world_size = options.world_size,
                        .hidden_size = model_.hidden_size,
                        .total_steps = 1000,
                        .warmup_steps = 0});
  config_ = parsed.config;
  // The planned model has names and shapes of its own, which no pattern is about. Heads change only
  // the scratch memory of Newton-Schulz and which rank owns a matrix.
  config_.optimizer.muon_heads.clear();
  without_effect_ = resolve_groups(config_.zero, options_.world_size, ranks_per_host());
  limits_ = {limit_of(options.device_memory, "--gpu_memory"),
             limit_of(options.host_memory, "--host_memory"), limit_of(options.disk, "--disk")};
  const double nbytes = activation_nbytes(model_, work_, config_, options.cpu);
  if (!(nbytes < kMaxByteSize)) {
    fail<ConfigError>(
        "plan: activations of {} sequences of {} tokens would need {:.1e} bytes: give a smaller "
        "--micro_batch or --seq_len",
        config_.batch.micro_batch_size, work_.seq_len, nbytes);
  }
  activations_ = static_cast<int64_t>(nbytes);
  if (__builtin_mul_overflow(config_.batch.micro_batch_size, work_.seq_len, &tokens_)) {
    fail<ConfigError>(
        "plan: {} sequences of {} tokens are more than 2^63 tokens: give a smaller --micro_batch "
        "or --seq_len",
        config_.batch.micro_batch_size, work_.seq_len);
  }
  if (options.tflops > 0 && tokens_ == 0) {
    fail<ConfigError>(
        "--tflops needs the number of tokens per step, got {} sequences of {} tokens: give "
        "--seq_len, and --micro_batch unless the configuration has it",
        config_.batch.micro_batch_size, work_.seq_len);
  }
}

Need Planner::need_of(const Config& config) const {
  Need need;
  need.plan = plan_memory(config, model_.specs, layout());
  need.device = add(need.plan.device(), activations_);
  need.snapshot = plan_snapshot(config, model_.specs, layout());
  need.host = multiply(add(need.plan.pinned, need.snapshot), ranks_per_host());
  need.disk = multiply(need.plan.nvme, ranks_per_host());
  if (options_.cpu) {
    need.host = add(need.host, multiply(need.device, ranks_per_host()));
    need.device = 0;
  }
  return need;
}

Need Planner::need_of(const Setting& setting) const {
  Config config = config_;
  config.zero = at_stage(config_.zero, setting.stage);
  config.offload.optimizer.device = setting.optimizer;
  config.offload.optimizer.ratio = setting.ratio;
  config.offload.param.device = setting.param;
  if (setting.param == OffloadDevice::nvme) config.offload.param.max_in_cpu = 0;
  return need_of(config);
}

// Describes the shard groups; "" if all ranks share one copy.
std::string Planner::groups() const {
  const int64_t ranks = config_.zero.shard_group_size;
  if (ranks == 0 || ranks == options_.world_size) return {};
  return fmt::format(", {} shard groups of {} rank{}", options_.world_size / ranks, ranks,
                     ranks == 1 ? "" : "s");
}

std::string Planner::details() const {
  const Need need = need_of(config_);
  const MemoryPlan& plan = need.plan;
  std::string text =
      fmt::format("{}; {} rank{}, {} per host\n", model_.description, options_.world_size,
                  options_.world_size == 1 ? "" : "s", ranks_per_host());
  text += fmt::format("{}: {}, {}{}\nbytes of a rank\n", config_.source,
                      describe({config_.zero.stage, config_.offload.optimizer.device,
                                config_.offload.optimizer.ratio, config_.offload.param.device}),
                      zerorun::name_of(config_.precision.param_dtype), groups());
  const auto line = [&](std::string_view name, int64_t nbytes) {
    text += fmt::format("  {:<12} {:>12}\n", name, text_of(nbytes));
  };
  line("parameters", plan.parameters);
  if (config_.zero.hpz_partition_size > 1) line("hpZ", plan.secondary);
  line("gradients", plan.gradients);
  line("master", plan.masters);
  line("moments", plan.moments);
  line("buckets", plan.buckets);
  line("gathered", plan.gathered);
  line("activations", activations_);
  line("pinned", plan.pinned);
  line("nvme", plan.nvme);
  line("snapshot", need.snapshot);
  for (const std::string_view key : without_effect_) {
    text += fmt::format("  no effect on one host: {}\n", key);
  }
  if (activations_ == 0) {
    text += model_.activation_nbytes_per_token > 0
                ? "  activations: give --seq_len (and --micro_batch) to count them\n"
                : "  activations are not counted: they are the model's own\n";
  }
  return text;
}

std::string Planner::table() const {
  const char* const fits = activations_ > 0 ? "  fits" : "  states fit";
  std::string text = fmt::format("\n{:<42}{:>13}{:>13}{:>13}{}\n", "setting", "device/rank",
                                 "memory/host", "disk/host", limits_.any() ? fits : "");
  for (const Setting& setting : all_settings()) {
    const Need need = need_of(setting);
    text += fmt::format("{:<42}{:>13}{:>13}{:>13}{}\n", describe(setting), text_of(need.device),
                        text_of(need.host), text_of(need.disk),
                        limits_.any() ? limits_.allow(need) ? "  yes" : "  no" : "");
  }
  return text;
}

std::string Planner::json() const {
  Json settings = Json::array();
  for (const Setting& setting : by_speed()) {
    const Need need = need_of(setting);
    settings.push_back({{"setting", describe(setting)},
                        {"stage", setting.stage},
                        {"offload_optimizer", name_of(setting.optimizer)},
                        {"ratio", setting.ratio},
                        {"offload_param", name_of(setting.param)},
                        {"device_bytes", need.device},
                        {"host_bytes", need.host},
                        {"disk_bytes", need.disk},
                        {"fits", limits_.allow(need)}});
  }
  return Json{{"settings", settings}}.dump(1);
}

std::string Planner::report() const {
  std::string text = details() + table() + link_table(config_, model_.specs, layout());
  if (options_.simulate.empty()) return text;
  std::optional<int64_t> room = limits_.device;
  if (room) *room -= activations_;
  return text + simulation_report(config_, model_.specs, cluster_of(options_), tokens_, room);
}

Setting Planner::fastest(const std::string& nvme_path) const {
  std::optional<Setting> closest;
  double least = std::numeric_limits<double>::infinity();
  std::string without_path;
  for (const Setting& setting : by_speed()) {
    const Need need = need_of(setting);
    const bool is_usable = setting.optimizer != OffloadDevice::nvme || !nvme_path.empty();
    if (limits_.allow(need)) {
      if (is_usable) return setting;
      if (without_path.empty()) without_path = describe(setting);
    }
    if (const double excess = limits_.excess(need); excess < least) {
      least = excess;
      closest = setting;
    }
  }
  if (!without_path.empty()) {
    fail<ConfigError>("--fit: only settings with NVMe fit, such as {}: give --nvme_path",
                      without_path);
  }
  const Need need = need_of(*closest);
  fail<ConfigError>(
      "--fit: nothing fits; the closest, {}, needs {} of each device and {} of each host's "
      "memory{}. Use more ranks, --recompute or a smaller --micro_batch",
      describe(*closest), text_of(need.device), text_of(need.host),
      need.disk == 0 ? "" : fmt::format(", and {} of its disk", text_of(need.disk)));
}

// Returns the configuration FILE with the setting, and with the micro-batch size and options for
// which it fits.
Json Planner::configuration(const Setting& setting, const std::string& nvme_path) const {
  Json json = options_.config.empty()
                  ? Json{{"bf16", {{"enabled", true}}}}
                  : Json::parse(plain_config_json(options_.config), nullptr, false);
  if (!json.is_object()) fail<ConfigError>("--fit: {} is not a JSON object", config_.source);
  set_setting(json, setting, nvme_path);
  if (work_.micro_batch > 0 || activations_ > 0) {
    json["train_micro_batch_size_per_gpu"] = config_.batch.micro_batch_size;
    if (json.contains("train_batch_size")) json.erase("gradient_accumulation_steps");
    if (const Json::json_pointer train("/zerorun/train");
        json.contains(train) && json[train].is_object()) {
      json[train].erase("micro_batch");  // same setting
    }
  }
  if (activations_ > 0) {
    Json& train = json["zerorun"]["train"];
    train["seq_len"] = work_.seq_len;
    train["recompute"] = work_.recompute;
    if (work_.fast_attention) train["fast_attention"] = true;
  }
  return json;
}

std::string Planner::write_fit() const {
  if (!limits_.any()) {
    fail<ConfigError>("--fit needs a limit: --gpu_memory, --host_memory or --disk");
  }
  const OffloadConfig& places = config_.offload;
  const std::string path =
      options_.nvme_path.empty()
          ? places.optimizer.nvme_path.value_or(places.param.nvme_path.value_or(""))
          : options_.nvme_path;
  const Setting setting = fastest(path);
  const std::string text = configuration(setting, path).dump(2) + "\n";
  // The file has to fit without the options of the command line.
  PlanOptions alone = options_;
  alone.micro_batch = alone.seq_len = 0;
  alone.recompute = alone.fast_attention = false;
  const Planner written(alone, parse_config_for(ConfigReader::pytorch, text, options_.fit));
  ZR_CHECK(limits_.allow(written.need_of(written.config_)), "{}: {} does not fit once written",
           options_.fit, describe(setting));
  write_whole_file(options_.fit, text);
  return fmt::format("{}: {}\n", options_.fit, describe(setting));
}

// Throws ConfigError for options that would be ignored.
void check_simulation(const PlanOptions& options) {
  if (options.simulate.empty()) {
    if (options.link.empty() && options.nvlink.empty() && options.link_cpu.empty() &&
        options.tflops == 0) {
      return;
    }
    fail<ConfigError>(
        "--link, --nvlink, --link_cpu and --tflops describe a cluster: they need --simulate");
  }
  if (options.json) fail<ConfigError>("--simulate has no output in JSON: remove --json");
  if (options.world_size > 1 || options.ranks_per_host > 0) {
    fail<ConfigError>(
        "--simulate determines the number of ranks: remove --world_size and --ranks_per_host");
  }
}

}  // namespace

std::string plan_report(const PlanOptions& given) {
  PlanOptions options = given;
  check_simulation(options);
  if (!options.simulate.empty()) {
    const SimulatedCluster cluster = cluster_of(options);
    options.world_size = cluster.ranks();
    options.ranks_per_host = cluster.gpus;
    options.cpu = cluster.cpu;
  }
  const Planner planner(options, parsed_config(options));
  const std::string written = options.fit.empty() ? "" : planner.write_fit();
  return options.json ? planner.json() : written + planner.report();
}

}  // namespace zerorun
