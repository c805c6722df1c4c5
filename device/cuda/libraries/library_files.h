#pragma once

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

namespace zerorun {

// Returns file names, for SharedLibrary, of a library that comes with CUDA. For "cublas" these are
// libcublas.so.13 and .12 if the driver runs them, the later version first. `built` is the file of
// either version that the build found, or empty; the other version may be beside it.
inline std::vector<std::string> library_files_of_cuda(std::string_view name,
                                                      std::string_view built) {
  // Without a driver (0), or with one that is too old for both, all versions are named.
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess) cudaGetLastError();
  std::vector<std::string> sonames;
  std::vector<std::string> files;
  for (const int major : {13, 12}) {
    if (driver >= 12000 && driver / 1000 < major) continue;
    sonames.push_back(fmt::format("lib{}.so.{}", name, major));
    if (!built.empty()) {
      files.push_back(fmt::format("{}{}", built.substr(0, built.rfind('.') + 1), major));
    }
  }
  sonames.insert(sonames.end(), files.begin(), files.end());
  return sonames;
}

// Returns lines for `zerorun env`: version and file of cuBLAS, cuBLASLt and cuDNN, or what to do if
// one is missing.
std::vector<std::string> describe_libraries_of_cuda();

}  // namespace zerorun
