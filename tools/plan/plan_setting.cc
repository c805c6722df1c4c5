#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "config/keys/key_table.h"
#include "tools/plan/plan.h"
#include "train/model/activations.h"
#include "train/model/kernels.h"
#include "zero/memory_plan.h"
#include "zerorun/checkpoint.h"

namespace zerorun {

std::string_view name_of(OffloadDevice device) {
  return kTexts<OffloadDevice>[static_cast<size_t>(device)];
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

std::vector<Setting> all_settings() {
  std::vector<Setting> settings = {{0}, {1}, {2}, {3}};
  const auto add = [&](OffloadDevice device, std::initializer_list<double> ratios) {
    for (const double ratio : ratios) {
      for (int stage = 1; stage <= 3; ++stage) settings.push_back({stage, device, ratio});
    }
    settings.push_back({3, device, 1.0, OffloadDevice::cpu});
  };
  add(OffloadDevice::cpu, {0.25, 0.5, 0.75, 1.0});
  add(OffloadDevice::nvme, {0.5, 1.0});
  settings.push_back({3, OffloadDevice::nvme, 1.0, OffloadDevice::nvme});
  return settings;
}

std::vector<Setting> by_speed() {
  std::vector<Setting> settings = all_settings();
  std::rotate(settings.begin(), settings.begin() + 1, settings.begin() + 2);
  return settings;
}

namespace {

using Json = nlohmann::ordered_json;

// Sets `device` in the block of that name; keeps other keys of the block.
void set_device(Json& zero, const char* block, OffloadDevice device) {
  if (device == OffloadDevice::none) {
    zero.erase(block);
    return;
  }
  if (!zero[block].is_object()) zero[block] = Json::object();
  zero[block]["device"] = name_of(device);
}

}  // namespace

void set_setting(Json& json, const Setting& setting, const std::string& nvme_path) {
  Json& zero = json["zero_optimization"];
  if (!zero.is_object()) zero = Json::object();  // missing, or the older form, true or false
  for (const char* key : {"cpu_offload", "cpu_offload_param", "cpu_offload_use_pin_memory"}) {
    zero.erase(key);
  }
  zero["stage"] = setting.stage;
  if (setting.stage < 3) {
    for (const char* key : {"zero_hpz_partition_size", "zero_quantized_nontrainable_weights"}) {
      zero.erase(key);
    }
  }
  if (setting.stage == 0) {
    for (const char* key : {"mics_shard_size", "zero_quantized_weights", "zero_quantized_gradients",
                            "zeropp_loco_param"}) {
      zero.erase(key);
    }
    if (json.contains("zerorun") && json["zerorun"].is_object()) {
      json["zerorun"].erase("shard_group_size");
    }
  }
  set_device(zero, "offload_optimizer", setting.optimizer);
  set_device(zero, "offload_param", setting.param);
  if (setting.optimizer != OffloadDevice::none) {
    zero["offload_optimizer"]["ratio"] = setting.ratio;
    if (setting.optimizer == OffloadDevice::nvme) {
      zero["offload_optimizer"]["nvme_path"] = nvme_path;
    }
  }
  if (setting.param == OffloadDevice::nvme) {
    zero["offload_param"]["nvme_path"] = nvme_path;
    zero["offload_param"]["max_in_cpu"] = 0;  // everything that can be in the file is
  }
}

Workload workload_of(const PlanOptions& options, const Config& config) {
  const auto file = nlohmann::json::parse(config.train_options, nullptr, false);
  const auto integer = [&](int64_t given, const char* key) {
    return given > 0 || !file.contains(key) ? given : file.at(key).get<int64_t>();
  };
  const auto flag = [&](bool given, const char* key) {
    return given || (file.contains(key) && file.at(key).get<bool>());
  };
  return {.micro_batch = integer(options.micro_batch, "micro_batch"),
          .seq_len = integer(options.seq_len, "seq_len"),
          .recompute = flag(options.recompute, "recompute"),
          .fast_attention = flag(options.fast_attention, "fast_attention")};
}

double activation_nbytes(const PlanModel& model, const Workload& work, const Config& config,
                         bool cpu) {
  const train::AttentionShape shape{.batch = config.batch.micro_batch_size,
                                    .seq_len = work.seq_len,
                                    .heads = model.heads,
                                    .width = model.hidden_size};
  const double per_token =
      work.recompute ? model.recomputed_nbytes_per_token : model.activation_nbytes_per_token;
  const double tokens = static_cast<double>(shape.batch) * static_cast<double>(shape.seq_len);
  double nbytes = per_token * tokens;
  if (model.logits_row_nbytes > 0) {
    nbytes += train::logits_rows(tokens, model.logits_row_nbytes) * model.logits_row_nbytes;
  }
  if (cpu || shape.heads == 0 || !train::cudnn_has_attention(shape, config.precision.param_dtype)) {
    return nbytes;
  }
  return nbytes + (work.fast_attention ? train::fast_attention_workspace(shape)
                                       : train::attention_workspace(shape));
}

namespace {

// Returns the bytes of masters and optimizer states that a rank saves from device memory. At stage
// 0 it stores all of them and saves its share.
int64_t resident_nbytes(const Config& config, std::span<const ParameterSpec> specs,
                        const HostLayout& layout) {
  const MemoryPlan plan = plan_memory(config, specs, layout);
  int64_t stored = plan.masters + plan.moments;
  if (config.zero.stage == 0) stored /= layout.world_size;
  const bool is_own_master =
      config.precision.master_is_param || config.precision.param_dtype == DType::fp32;
  if (!is_own_master || config.offload.optimizer.device != OffloadDevice::none) return stored;
  int64_t numel = 0;
  for (const ParameterSpec& spec : specs) numel += spec.alias_of.empty() ? spec.numel() : 0;
  const int64_t group = config.zero.shard_group_size;
  return stored + numel / (group > 0 ? group : layout.world_size) *
                      static_cast<int64_t>(size_of(config.precision.param_dtype));
}

// True if saves are asynchronous, by the option of the bundled program, else by the section
// checkpoint.
bool saves_beside_training(const Config& config) {
  const nlohmann::json train = nlohmann::json::parse(config.train_options, nullptr, false);
  return train.is_object() ? train.value("save_async", config.checkpoint.async_save)
                           : config.checkpoint.async_save;
}

}  // namespace

int64_t plan_snapshot(const Config& config, std::span<const ParameterSpec> specs,
                      const HostLayout& layout) {
  if (!saves_beside_training(config)) return 0;
  Config at_home = config;
  at_home.offload = OffloadConfig{};
  const int64_t whole = resident_nbytes(at_home, specs, layout);
  if (config.checkpoint.async_buffer_size > 0) {
    return std::min(whole, config.checkpoint.async_buffer_size);
  }
  const int64_t resident = resident_nbytes(config, specs, layout);
  return std::min(whole, std::max(resident, static_cast<int64_t>(kMinSnapshotNbytes)));
}

}  // namespace zerorun
