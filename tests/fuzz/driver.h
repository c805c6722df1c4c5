#pragma once

#include <string>
#include <vector>

namespace zerorun::testing {

// Valid inputs of a fuzz target; the driver mutates them where libFuzzer is not linked in.
std::vector<std::string> fuzz_seeds();

}  // namespace zerorun::testing
