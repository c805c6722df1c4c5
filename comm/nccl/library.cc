#include "comm/nccl/library.h"

#include <fmt/format.h>

#include <array>

namespace zerorun {

namespace {

std::array<std::string, 2> library_files() { return {"libnccl.so.2", ZERORUN_NCCL_LIBRARY}; }

}  // namespace

NcclFunctions open_nccl() {
  const SharedLibrary library(library_files());
  return {ZR_NCCL_FUNCTIONS(ZR_FIND_FUNCTION)};
}

std::string describe_nccl() {
  const auto version = [](const SharedLibrary& library) {
    int number = 0;
    library.function<decltype(ncclGetVersion)>("ncclGetVersion")(&number);
    return fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100);
  };
  return describe_library(
      "NCCL", library_files(), version,
      "Several ranks need it: pip install nvidia-nccl-cu13 (or -cu12), or install libnccl2");
}

}  // namespace zerorun
