#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "config/keys/key_table.h"
#include "tools/plan/plan.h"

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
    if (json.contains("zerorun")) json["zerorun"].erase("shard_group_size");
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

}  // namespace zerorun
