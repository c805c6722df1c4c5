#include "comm/device_communicator.h"
#include "device/cuda_backend.h"
#include "tests/comm/conformance.h"

namespace zerorun::testing {

std::vector<TransportUnderTest> transports_under_test() {
  constexpr std::chrono::minutes kTimeout{10};
  const auto make_device = [](int gpu) { return make_cuda_device({.index = gpu}); };
  TransportUnderTest nccl =
      on_gpus("nccl", {make_device, make_communicator, false, false, kTimeout});
  nccl.most_ranks = why_no_cuda().empty() ? open_cuda_backend().device_count() : 1;
  TransportUnderTest host_staged =
      on_gpus("host_staged", {make_device, make_host_staged_communicator, true, false, kTimeout});
  // A kernel that is loaded when it is first launched waits for the whole GPU: for streams of other
  // ranks that wait for this one, where ranks are threads that share it (as processes they do not).
  host_staged.enter = [] {
    const char* const loading = std::getenv("CUDA_MODULE_LOADING");
    ZR_CHECK(loading != nullptr && loading == std::string("EAGER"),
             "ranks that share a GPU as threads need CUDA_MODULE_LOADING=EAGER");
  };
  return {on_gpus("self", {make_device, make_communicator, false, true}), nccl, host_staged};
}

}  // namespace zerorun::testing
