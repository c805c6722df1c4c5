#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "zerorun/config.h"

namespace zerorun {

// A stage and offload settings.
struct Setting {
  int stage = 0;
  OffloadDevice optimizer = OffloadDevice::none;
  double ratio = 1.0;
  OffloadDevice param = OffloadDevice::none;
};

std::string_view name_of(OffloadDevice device);
std::string describe(const Setting& setting);
// Returns the rows of the table, from which --fit chooses. Order: nothing offloaded first, then as
// little as possible; memory before disk; lower stages, which gather less, before higher ones.
std::vector<Setting> all_settings();
// Returns the settings from the fastest to the slowest. (Stage 1 communicates as much as stage 0
// and never needs more memory.)
std::vector<Setting> by_speed();

// Changes a configuration, a JSON object, to a setting. Removes keys that its stage does not allow;
// keeps all others.
void set_setting(nlohmann::ordered_json& json, const Setting& setting,
                 const std::string& nvme_path);

}  // namespace zerorun
