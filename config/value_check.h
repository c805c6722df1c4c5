#pragma once

#include <optional>
#include <string>

#include "config/key_spec.h"

namespace zerorun {

// Whether a value suits a key, by the key's type, range and choices.

// "an integer from 0 to 3", `"none", "cpu" or "nvme"`.
std::string expected_value(const KeySpec& spec);

// What is wrong with the value ("got ..., expected ..."), or nothing. Brings strings that must be
// one of some choices into the table's spelling.
std::optional<std::string> check_value(const KeySpec& spec, JsonNode& node);

// "auto", for a key that takes it as "not given".
bool is_auto(const KeySpec& spec, const JsonNode& node);

}  // namespace zerorun
