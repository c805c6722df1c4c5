#pragma once

#include <string>
#include <vector>

#include "config/key_check.h"

namespace zerorun {

// What follows from the status of the keys that a file gives (KeyStatus).

// Whether the value asks for something: it is given and differs from the default. An object asks
// for nothing when it is empty or says "enabled": false.
bool asks_for_something(const GivenKey& key);

// A key zerorun accepts without doing anything about the value it has.
bool is_without_effect(const GivenKey& key);

// Values that ask for what is not supported become problems; deprecated names and keys without
// effect become warnings.
void check_statuses(const KeyTable& table, const GivenKeys& keys, ConfigProblems& problems,
                    std::vector<std::string>& warnings);

}  // namespace zerorun
