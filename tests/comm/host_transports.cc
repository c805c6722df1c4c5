#include "tests/comm/conformance.h"

namespace zerorun::testing {

namespace {

// Ranks on hosts of `ranks_of_host` each, the last one with what is left.
TransportUnderTest on_hosts(std::string name, int ranks_of_host, int least_ranks) {
  const auto run = [ranks_of_host](int world_size, const TransportUnderTest::Body& body) {
    run_ranks({.ranks = world_size, .host_of = hosts_of(ranks_of_host)},
              [&](Communicator& communicator) {
                const auto device = make_cpu_device();
                body(communicator, *device);
              });
  };
  return {.name = std::move(name),
          .run = run,
          .least_ranks = least_ranks,
          .has_host_memory = ranks_of_host > 2};
}

}  // namespace

std::vector<TransportUnderTest> transports_under_test() {
  TransportUnderTest group_of_pairs = every_other_rank_of(on_hosts("pairs_of_ranks", 4, 3));
  group_of_pairs.has_host_memory = false;
  return {on_hosts("host", 1024, 1),
          on_hosts("gloo", 1, 2),
          on_hosts("pairs_of_ranks", 2, 3),
          every_other_rank_of(on_hosts("host", 1024, 1)),
          every_other_rank_of(on_hosts("gloo", 1, 2)),
          group_of_pairs};
}

}  // namespace zerorun::testing
