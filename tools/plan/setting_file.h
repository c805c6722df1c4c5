#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tools/plan/plan_setting.h"

namespace zerorun {

// Changes a configuration, a JSON object, to a setting. Removes keys that its stage does not allow;
// keeps all others.
void set_setting(nlohmann::ordered_json& json, const Setting& setting,
                 const std::string& nvme_path);

}  // namespace zerorun
