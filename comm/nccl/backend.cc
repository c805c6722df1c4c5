// libzerorun_cuda.so's entry point to its communicators.
#include "comm/nccl/backend.h"

#include "comm/nccl/communicator.h"
#include "comm/nccl/library.h"

namespace zerorun {

extern "C" __attribute__((visibility("default"))) const NcclBackend* zerorun_nccl_backend() {
  static const NcclBackend backend = {build_id(), make_nccl_communicator, describe_nccl};
  return &backend;
}

}  // namespace zerorun
