#pragma once

#include <string>
#include <string_view>

#include "zerorun/config.h"

namespace zerorun {

// The reader of a configuration. A key that KeyStatus::pytorch marks is an error for programs in
// C++, which parse_config and load_config are for.
enum class ConfigReader { cpp, pytorch };

ParsedConfig parse_config_for(ConfigReader reader, std::string_view json, std::string source);
ParsedConfig load_config_for(ConfigReader reader, const std::string& path);

}  // namespace zerorun
