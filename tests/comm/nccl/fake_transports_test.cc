// The conformance suite of communicators (tests/comm/conformance_test.cc) on NCCL's transport and
// on the one through the host, with fake CUDA libraries below them.

#include "comm/device_communicator.h"
#include "comm/nccl/communicator.h"
#include "tests/comm/conformance.h"
#include "tests/device/cuda/fake_cuda_test.h"

namespace zerorun::testing {

std::vector<TransportUnderTest> transports_under_test() {
  const auto make_device = [](int gpu) { return std::make_shared<CudaDevice>(gpu, 0); };
  const auto on_fake = [](TransportUnderTest transport) {
    transport.enter = [] {
      fake::FakeCuda::instance().reset();
      fake::FakeCuda::instance().set_devices(8);
      fake::FakeCuda::instance().set_delay(200us);
    };
    transport.leave = expect_clean;
    return transport;
  };
  const TransportUnderTest self =
      on_fake(on_gpus("self", {make_device, make_nccl_communicator, false, true}));
  const TransportUnderTest nccl = on_fake(on_gpus("nccl", {make_device, make_nccl_communicator}));
  const TransportUnderTest host_staged =
      on_fake(on_gpus("host_staged", {make_device, make_host_staged_communicator, true}));
  return {self, nccl, host_staged, every_other_rank_of(nccl), every_other_rank_of(host_staged)};
}

}  // namespace zerorun::testing
