#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tools/plan/plan_setting.h"

namespace zerorun {

// Makes a configuration, an object, that of the setting. What its stage cannot have goes; other
// keys stay.
void set_setting(nlohmann::ordered_json& json, const Setting& setting,
                 const std::string& nvme_path);

}  // namespace zerorun
