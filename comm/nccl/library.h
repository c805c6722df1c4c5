#pragma once

#include <nccl.h>

#include <string>

namespace zerorun {

// The functions of NCCL that zerorun uses. open_nccl() takes them from the copy that the process
// has already loaded (PyTorch has one), else from the one that the loader finds. It throws
// DeviceError if there is none.
struct NcclFunctions {
  decltype(&ncclGetVersion) version = nullptr;
  decltype(&ncclGetUniqueId) unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) init = nullptr;
  decltype(&ncclCommSplit) split = nullptr;
  decltype(&ncclCommFinalize) finalize = nullptr;
  decltype(&ncclCommDestroy) destroy = nullptr;
  decltype(&ncclCommAbort) abort = nullptr;
  decltype(&ncclCommGetAsyncError) async_error = nullptr;
  decltype(&ncclGetErrorString) error_string = nullptr;
  decltype(&ncclGetLastError) last_error = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclBroadcast) broadcast = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) receive = nullptr;
  decltype(&ncclMemAlloc) allocate = nullptr;
  decltype(&ncclMemFree) free = nullptr;
  decltype(&ncclCommRegister) register_memory = nullptr;
  decltype(&ncclCommDeregister) deregister_memory = nullptr;
};
NcclFunctions open_nccl();

// For `zerorun env`: version and file of NCCL, or why it cannot be used.
std::string describe_nccl();

}  // namespace zerorun
