#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace zerorun {

// The names, for SharedLibrary, of a library that comes with CUDA: "cublas" is libcublas.so.13 and
// .12, as far as the driver runs them, the later one first. `built` is the file that the build
// found, of whichever of the two, or empty; the other one may lie beside it.
std::vector<std::string> library_files_of_cuda(std::string_view name, std::string_view built);

}  // namespace zerorun
