#pragma once

#include <string>
#include <vector>

namespace zerorun {

// For `zerorun env`: version and file of cuBLAS, cuBLASLt and cuDNN, or what to do about one that
// is missing.
std::vector<std::string> describe_libraries_of_cuda();

}  // namespace zerorun
