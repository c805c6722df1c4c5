#include "comm/nccl_library.h"

#include <fmt/format.h>

#include <array>

#include "core/shared_library.h"
#include "zerorun/error.h"

namespace zerorun {

namespace {

SharedLibrary open_library() {
  const std::array<std::string, 2> names = {"libnccl.so.2", ZERORUN_NCCL_LIBRARY};
  return SharedLibrary(names);
}

}  // namespace

NcclFunctions open_nccl() {
  const SharedLibrary library = open_library();
  return {
      .version = library.function<decltype(ncclGetVersion)>("ncclGetVersion"),
      .unique_id = library.function<decltype(ncclGetUniqueId)>("ncclGetUniqueId"),
      .init = library.function<decltype(ncclCommInitRankConfig)>("ncclCommInitRankConfig"),
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
      .allocate = library.function<decltype(ncclMemAlloc)>("ncclMemAlloc"),
      .free = library.function<decltype(ncclMemFree)>("ncclMemFree"),
      .register_memory = library.function<decltype(ncclCommRegister)>("ncclCommRegister"),
      .deregister_memory = library.function<decltype(ncclCommDeregister)>("ncclCommDeregister"),
  };
}

std::string describe_nccl() {
  try {
    const SharedLibrary library = open_library();
    int version = 0;
    library.function<decltype(ncclGetVersion)>("ncclGetVersion")(&version);
    return fmt::format("NCCL {}.{}.{} ({})", version / 10000, version / 100 % 100, version % 100,
                       library.path());
  } catch (const DeviceError& error) {
    return fmt::format("no NCCL: {}", error.what());
  }
}

}  // namespace zerorun
