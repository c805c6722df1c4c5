#pragma once

#include "comm/nccl/communicator.h"
#include "tests/device/cuda/fake_cuda_test.h"
#include "tests/harness.h"

namespace zerorun::testing {

// Ranks that are threads, with a fake GPU each, and communicate through the fake NCCL.
struct NcclTest : FakeCudaTest {
  using Body = std::function<void(Communicator&, CudaDevice&)>;

  void on_ranks(int world_size, std::chrono::milliseconds timeout, const Body& body) {
    fake_.set_devices(world_size);
    const auto store = store_ ? store_ : make_memory_store();
    run_threads(world_size, [&](int rank) {
      const auto device = std::make_shared<CudaDevice>(rank, 0);
      device->use_inline_stream(nullptr);  // the default stream of the rank's device, as PyTorch's
      const auto communicator =
          make_nccl_communicator(options_of_rank(rank, world_size, store, timeout, device));
      body(*communicator, *device);
    });
  }

  std::shared_ptr<Store> store_;  // null: a new one each time
};

}  // namespace zerorun::testing
