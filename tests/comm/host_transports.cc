#include "tests/comm/conformance.h"
#include "tests/harness.h"

namespace zerorun::testing {

std::vector<TransportUnderTest> transports_under_test() {
  const auto run = [](int world_size, const TransportUnderTest::Body& body) {
    run_ranks(world_size, [&](Communicator& communicator) {
      const auto device = make_cpu_device();
      body(communicator, *device);
    });
  };
  return {{.name = "host", .run = run}};
}

}  // namespace zerorun::testing
