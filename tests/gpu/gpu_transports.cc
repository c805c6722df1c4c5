#include <cstdlib>

#include "comm/device_communicator.h"
#include "core/check.h"
#include "device/cuda_backend.h"
#include "tests/comm/conformance.h"
#include "tests/harness.h"

namespace zerorun::testing {

namespace {

// Without NCCL.
void run_alone(int /*world_size*/, const TransportUnderTest::Body& body) {
  CommunicatorOptions options;
  options.device = make_cuda_device({.index = 0});
  body(*make_communicator(options), *options.device);
}

// Each rank has a GPU of its own, or all share the first. One rank with a store has NCCL, too.
//
// A kernel that is loaded when it is first launched waits for the whole GPU: for streams of other
// ranks that wait for this one, where ranks are threads that share it (as processes they do not).
void run_on_gpus(int world_size, bool shared, const TransportUnderTest::Body& body) {
  const char* const loading = std::getenv("CUDA_MODULE_LOADING");
  ZR_CHECK(!shared || world_size == 1 || (loading != nullptr && loading == std::string("EAGER")),
           "ranks that share a GPU as threads need CUDA_MODULE_LOADING=EAGER");
  const auto store = make_memory_store();
  run_threads(world_size, [&](int rank) {
    CommunicatorOptions options =
        options_of_rank(rank, world_size, store, std::chrono::minutes(10));
    options.device = make_cuda_device({.index = shared ? 0 : rank});
    const auto communicator =
        shared ? make_host_staged_communicator(options) : make_communicator(options);
    body(*communicator, *options.device);
  });
}

}  // namespace

std::vector<TransportUnderTest> transports_under_test() {
  const int gpus = why_no_cuda().empty() ? open_cuda_backend().device_count() : 1;
  return {
      {.name = "self", .run = run_alone, .most_ranks = 1, .has_host_memory = false},
      {.name = "nccl",
       .run = [](int world_size,
                 const TransportUnderTest::Body& body) { run_on_gpus(world_size, false, body); },
       .most_ranks = gpus,
       .has_host_memory = false,
       .rounds_to_inputs = true},
      {.name = "host_staged",
       .run = [](int world_size,
                 const TransportUnderTest::Body& body) { run_on_gpus(world_size, true, body); },
       .has_host_memory = false}};
}

}  // namespace zerorun::testing
