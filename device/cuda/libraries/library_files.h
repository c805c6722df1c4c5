#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace zerorun {

// Returns file names, for SharedLibrary, of a library that comes with CUDA. For "cublas" these are
// libcublas.so.13 and .12 if the driver runs them, the later version first. `built` is the file of
// either version that the build found, or empty; the other version may be beside it.
std::vector<std::string> library_files_of_cuda(std::string_view name, std::string_view built);
// Returns lines for `zerorun env`: version and file of cuBLAS, cuBLASLt and cuDNN, or what to do if
// one is missing.
std::vector<std::string> describe_libraries_of_cuda();

}  // namespace zerorun
