#include <cublasLt.h>
#ifdef ZERORUN_CUDNN_LIBRARY
#include <cudnn.h>
#endif
#include <fmt/format.h>

#include <array>

#include "device/cuda/libraries/cublas.h"
#include "device/cuda/libraries/library_files.h"

namespace zerorun {

namespace {

constexpr const char* kInstall =
    "pip install nvidia-cublas (nvidia-cublas-cu12 for a driver of CUDA 12), or install the CUDA "
    "toolkit";

// 130101 as "13.1.1".
std::string version_of(size_t number) {
  return fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100);
}

std::vector<std::string> cublas_files() {
  return library_files_of_cuda("cublas", ZERORUN_CUBLAS_LIBRARY);
}

std::string describe_cublas() {
  const auto version = [](const SharedLibrary& library) {
    const auto property = library.function<decltype(cublasGetProperty)>("cublasGetProperty");
    std::array<int, 3> parts{};
    for (const libraryPropertyType part : {MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL}) {
      property(part, &parts.at(static_cast<size_t>(part)));
    }
    return fmt::format("{}.{}.{}", parts[0], parts[1], parts[2]);
  };
  return describe_library("cuBLAS", cublas_files(), version,
                          fmt::format("Muon needs it: {}", kInstall));
}

std::string describe_cublas_lt() {
  const std::vector<std::string> files =
      library_files_of_cuda("cublasLt", ZERORUN_CUBLASLT_LIBRARY);
  const auto version = [](const SharedLibrary& library) {
    return version_of(library.function<decltype(cublasLtGetVersion)>("cublasLtGetVersion")());
  };
  return describe_library("cuBLASLt", files, version, fmt::format("train needs it: {}", kInstall));
}

std::string describe_cudnn() {
  constexpr const char* kRemedy =
      "Without it train's attention is much slower: pip install nvidia-cudnn-cu13 (or -cu12)";
#ifdef ZERORUN_CUDNN_LIBRARY
  const std::array<std::string, 2> files = {fmt::format("libcudnn.so.{}", CUDNN_MAJOR),
                                            ZERORUN_CUDNN_LIBRARY};
  const auto version = [](const SharedLibrary& library) {  // 9.28.0 is 92800
    return version_of(library.function<decltype(cudnnGetVersion)>("cudnnGetVersion")());
  };
  return describe_library("cuDNN", files, version, kRemedy);
#else
  return fmt::format("cuDNN: missing: this build had no headers of it. {} before the build",
                     kRemedy);
#endif
}

}  // namespace

CublasFunctions open_cublas() {
  const SharedLibrary library(cublas_files());
  return {ZR_CUBLAS_FUNCTIONS(ZR_FIND_FUNCTION)};
}

std::vector<std::string> describe_libraries_of_cuda() {
  return {describe_cublas(), describe_cublas_lt(), describe_cudnn()};
}

}  // namespace zerorun
