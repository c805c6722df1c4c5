#include "comm/nccl/library.h"

#include <fmt/format.h>

#include <array>
#include <string>

#include "os/shared_library.h"

namespace zerorun {

namespace {

std::array<std::string, 2> library_files() { return {"libnccl.so.2", ZERORUN_NCCL_LIBRARY}; }

}  // namespace

NcclFunctions open_nccl() {
  const SharedLibrary library(library_files());
  return {
      .version = library.function<decltype(ncclGetVersion)>("ncclGetVersion"),
      .unique_id = library.function<decltype(ncclGetUniqueId)>("ncclGetUniqueId"),
      .init = library.function<decltype(ncclCommInitRankConfig)>("ncclCommInitRankConfig"),
      .split = library.function<decltype(ncclCommSplit)>("ncclCommSplit"),
      .finalize = library.function<decltype(ncclCommFinalize)>("ncclCommFinalize"),
      .destroy = library.function<decltype(ncclCommDestroy)>("ncclCommDestroy"),
      .abort = library.function<decltype(ncclCommAbort)>("ncclCommAbort"),
      .async_error = library.function<decltype(ncclCommGetAsyncError)>("ncclCommGetAsyncError"),
      .error_string = library.function<decltype(ncclGetErrorString)>("ncclGetErrorString"),
      .last_error = library.function<decltype(ncclGetLastError)>("ncclGetLastError"),
      .group_start = library.function<decltype(ncclGroupStart)>("ncclGroupStart"),
      .group_end = library.function<decltype(ncclGroupEnd)>("ncclGroupEnd"),
      .all_reduce = library.function<decltype(ncclAllReduce)>("ncclAllReduce"),
      .reduce_scatter = library.function<decltype(ncclReduceScatter)>("ncclReduceScatter"),
      .all_gather = library.function<decltype(ncclAllGather)>("ncclAllGather"),
      .broadcast = library.function<decltype(ncclBroadcast)>("ncclBroadcast"),
      .send = library.function<decltype(ncclSend)>("ncclSend"),
      .receive = library.function<decltype(ncclRecv)>("ncclRecv"),
      .allocate = library.function<decltype(ncclMemAlloc)>("ncclMemAlloc"),
      .free = library.function<decltype(ncclMemFree)>("ncclMemFree"),
      .register_memory = library.function<decltype(ncclCommRegister)>("ncclCommRegister"),
      .deregister_memory = library.function<decltype(ncclCommDeregister)>("ncclCommDeregister"),
  };
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
