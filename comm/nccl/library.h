#pragma once

#include <nccl.h>

#include <string>

#include "os/shared_library.h"

#define ZR_NCCL_FUNCTIONS(X)            \
  X(version, ncclGetVersion)            \
  X(unique_id, ncclGetUniqueId)         \
  X(init, ncclCommInitRankConfig)       \
  X(split, ncclCommSplit)               \
  X(finalize, ncclCommFinalize)         \
  X(destroy, ncclCommDestroy)           \
  X(abort, ncclCommAbort)               \
  X(async_error, ncclCommGetAsyncError) \
  X(error_string, ncclGetErrorString)   \
  X(last_error, ncclGetLastError)       \
  X(group_start, ncclGroupStart)        \
  X(group_end, ncclGroupEnd)            \
  X(all_reduce, ncclAllReduce)          \
  X(reduce_scatter, ncclReduceScatter)  \
  X(all_gather, ncclAllGather)          \
  X(broadcast, ncclBroadcast)           \
  X(send, ncclSend)                     \
  X(receive, ncclRecv)                  \
  X(allocate, ncclMemAlloc)             \
  X(free, ncclMemFree)                  \
  X(register_memory, ncclCommRegister)  \
  X(deregister_memory, ncclCommDeregister)

namespace zerorun {

// The functions of NCCL that zerorun uses. open_nccl() takes them from the copy that the process
// has already loaded (PyTorch has one), else from the one that the loader finds. It throws
// DeviceError if there is none.
struct NcclFunctions {
  ZR_NCCL_FUNCTIONS(ZR_DECLARE_FUNCTION)
};
NcclFunctions open_nccl();

// For `zerorun env`: version and file of NCCL, or why it cannot be used.
std::string describe_nccl();

}  // namespace zerorun
