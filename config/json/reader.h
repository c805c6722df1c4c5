#pragma once

#include <string>
#include <string_view>

#include "zerorun/config.h"

namespace zerorun {

// Who reads a configuration. For C++ programs, which use parse_config and load_config, keys with
// KeyStatus::pytorch are errors.
enum class ConfigReader { cpp, pytorch };

ParsedConfig parse_config_for(ConfigReader reader, std::string_view json, std::string source);
ParsedConfig load_config_for(ConfigReader reader, const std::string& path);

// Decodes URL-safe base64 (RFC 4648, section 5), with or without padding. Returns nullopt for other
// text.
std::optional<std::string> decode_base64url(std::string_view text);

}  // namespace zerorun
