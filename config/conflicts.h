#pragma once

#include <optional>
#include <string>

#include "config/key_check.h"

namespace zerorun {

// Values that are right by themselves and contradict each other become problems.
void check_conflicts(const GivenKeys& keys, const Config& config, ConfigProblems& problems);

// Why gradients that travel as `sent` cannot be kept as `kept`: ranks are summed into the dtype
// that they travel in, or into fp32.
std::optional<std::string> accumulation_problem(DType kept, DType sent);

}  // namespace zerorun
