#include "tools/plan/plan_setting.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

namespace zerorun {

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

}  // namespace zerorun
