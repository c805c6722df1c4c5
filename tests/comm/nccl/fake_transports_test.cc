// The conformance suite of communicators (tests/comm/conformance_test.cc) on NCCL's transport and
// on the one through the host, with fake CUDA libraries below them.

#include "comm/device_communicator.h"
#include "comm/nccl/communicator.h"
#include "tests/comm/conformance.h"
#include "tests/device/cuda/fake_cuda_test.h"
#include "tests/harness.h"

namespace zerorun::testing {

namespace {

using fake::FakeCuda;

// Without NCCL.
void run_alone(int /*world_size*/, const TransportUnderTest::Body& body) {
  CommunicatorOptions options;
  options.device = std::make_shared<CudaDevice>(0, 0);
  body(*make_nccl_communicator(options), *options.device);
}

using MakeCommunicator = std::shared_ptr<Communicator> (*)(const CommunicatorOptions&);

// Each rank has a GPU of its own, or all share one. One rank with a store has NCCL, too.
void run_on_gpus(int world_size, bool shared, MakeCommunicator make,
                 const TransportUnderTest::Body& body) {
  const auto store = make_memory_store();
  FakeCuda::instance().set_devices(world_size);
  run_threads(world_size, [&](int rank) {
    CommunicatorOptions options = options_of_rank(rank, world_size, store);
    options.device = std::make_shared<CudaDevice>(shared ? 0 : rank, 0);
    const auto communicator = make(options);
    body(*communicator, *options.device);
  });
}

void enter() {
  FakeCuda::instance().reset();
  FakeCuda::instance().set_delay(std::chrono::microseconds(200));
}

}  // namespace

std::vector<TransportUnderTest> transports_under_test() {
  const TransportUnderTest self{.name = "self",
                                .run = run_alone,
                                .most_ranks = 1,
                                .has_host_memory = false,
                                .enter = enter,
                                .leave = expect_clean};
  TransportUnderTest nccl = self;
  nccl.name = "nccl";
  nccl.run = [](int world_size, const TransportUnderTest::Body& body) {
    run_on_gpus(world_size, false, make_nccl_communicator, body);
  };
  nccl.most_ranks = 1024;
  nccl.rounds_to_inputs = true;
  TransportUnderTest host_staged = nccl;
  host_staged.name = "host_staged";
  host_staged.run = [](int world_size, const TransportUnderTest::Body& body) {
    run_on_gpus(world_size, true, make_host_staged_communicator, body);
  };
  host_staged.rounds_to_inputs = false;
  return {self, nccl, host_staged, every_other_rank_of(nccl), every_other_rank_of(host_staged)};
}

}  // namespace zerorun::testing
