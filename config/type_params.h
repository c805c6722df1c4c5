#pragma once

#include <optional>
#include <string_view>

#include "config/key_check.h"

namespace zerorun {

// Parameters of an optimizer or scheduler depend on its type (KeySpec::used_by).

// The type that decides about a key: "" when there is none, nullopt when it is not a valid one.
std::optional<std::string_view> type_for(const KeyTable& table, const GivenKeys& keys,
                                         const KeySpec& spec);

// Parameters that the type does not take, and missing ones that it needs, become problems.
void check_type_params(const KeyTable& table, const GivenKeys& keys, ConfigProblems& problems);

}  // namespace zerorun
