#pragma once

#include "config/key_check.h"

namespace zerorun {

// Values that are right by themselves and contradict each other become problems.
void check_conflicts(const GivenKeys& keys, const Config& config, ConfigProblems& problems);

}  // namespace zerorun
