#pragma once

#include "comm/device_communicator.h"
#include "comm/nccl/communicator.h"
#include "tests/device/cuda/fake_cuda_test.h"
#include "tests/zero/toy_run.h"

namespace zerorun::testing {

enum class Where { cpu, nccl, shared_gpu };

// Ranks on the CPU, with a GPU each, or on one GPU.
inline Connect on(Where where) {
  return [where](CommunicatorOptions& options) {
    if (where == Where::cpu) return connect_on_cpu(options);
    options.device = std::make_shared<CudaDevice>(where == Where::nccl ? options.rank : 0, 0);
    return where == Where::nccl ? make_nccl_communicator(options)
                                : make_host_staged_communicator(options);
  };
}

}  // namespace zerorun::testing
