#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace zerorun {

// The table of environment variables that zerorun reads by name; `zerorun env` prints it.
struct EnvironmentVariable {
  std::string_view name;
  std::string_view meaning;
};
std::span<const EnvironmentVariable> environment_variables();

// The value, or nothing when unset or empty. Throws InternalError for a name that is not in the
// table.
std::optional<std::string> read_environment(std::string_view name);
// True when the value of a switch turns it on: anything but the empty text and 0.
bool is_on(std::string_view value);
// The value as an integer in [low, high]; throws ConfigError naming variable, value and range.
std::optional<long> read_environment_int(std::string_view name, long low, long high);

}  // namespace zerorun
