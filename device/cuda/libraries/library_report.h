#pragma once

#include <string>
#include <vector>

namespace zerorun {

// Returns lines for `zerorun env`: version and file of cuBLAS, cuBLASLt and cuDNN, or what to do if
// one is missing.
std::vector<std::string> describe_libraries_of_cuda();

}  // namespace zerorun
