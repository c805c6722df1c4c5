#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace zerorun {

// Every environment variable that zerorun reads; `zerorun env` prints the table.
struct EnvironmentVariable {
  std::string_view name;
  std::string_view meaning;
};
std::span<const EnvironmentVariable> environment_variables();

// The value, or nothing when unset or empty. Throws InternalError for a name that is not in the
// table.
std::optional<std::string> read_environment(std::string_view name);
// Whether the value of a variable that switches something on does: not when it is empty or 0.
bool is_on(std::string_view value);
// As an integer in [low, high]; throws ConfigError naming variable, value and range.
std::optional<long> read_environment_int(std::string_view name, long low, long high);

}  // namespace zerorun
