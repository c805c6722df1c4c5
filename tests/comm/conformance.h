#pragma once

#include "tests/harness.h"
#include "zerorun/communicator.h"
#include "zerorun/device.h"

namespace zerorun::testing {

// A transport that the conformance suite (tests/comm/conformance_test.cc) runs on.
struct TransportUnderTest {
  using Body = std::function<void(Communicator&, Device&)>;

  std::string name;
  // Runs `body` on `world_size` ranks that are threads, each with a device, and joins them.
  // Rethrows the error of the lowest failing rank.
  std::function<void(int world_size, const Body& body)> run;
  int least_ranks = 1;
  int most_ranks = 1024;
  bool has_host_memory = true;          // Sharing::per_host
  bool rounds_to_inputs = false;        // sums of 16-bit inputs are rounded to 16 bits
  std::function<void()> enter = [] {};  // before each test
  std::function<void()> leave = [] {};  // after it
};

// Groups of every other rank, of twice as many. They are collectives as those of a world are, and
// differ in how they are set up: one size is enough.
inline TransportUnderTest every_other_rank_of(const TransportUnderTest& all) {
  TransportUnderTest group = all;
  group.name = "group_of_" + all.name;
  group.least_ranks = group.most_ranks = 3;
  group.run = [run = all.run](int world_size, const TransportUnderTest::Body& body) {
    std::latch over(2 * world_size);
    struct Leave {
      std::latch& over;
      ~Leave() { over.arrive_and_wait(); }
    };
    run(2 * world_size, [&](Communicator& communicator, Device& device) {
      const Leave together{over};
      const int color = communicator.rank() % 2 == 0 ? 7 : -1;
      const auto members = communicator.split(color, communicator.rank(), "even ranks");
      EXPECT_EQ(members == nullptr, color < 0);
      if (members) body(*members, device);
    });
  };
  return group;
}

// Between a GPU for each rank, or one that all share. One rank with a store has NCCL, too.
struct GpuRanks {
  std::function<std::shared_ptr<Device>(int gpu)> make_device;
  std::function<std::shared_ptr<Communicator>(const CommunicatorOptions&)> make;
  bool shared = false;
  bool alone = false;  // without a store
  std::chrono::milliseconds timeout = std::chrono::seconds(30);
};
inline TransportUnderTest on_gpus(std::string name, const GpuRanks& ranks) {
  const auto run = [ranks](int world_size, const TransportUnderTest::Body& body) {
    const auto store = ranks.alone ? nullptr : make_memory_store();
    run_threads(world_size, [&](int rank) {
      CommunicatorOptions options = options_of_rank(rank, world_size, store, ranks.timeout);
      options.device = ranks.make_device(ranks.shared ? 0 : rank);
      const auto communicator = ranks.make(options);
      body(*communicator, *options.device);
    });
  };
  return {.name = std::move(name),
          .run = run,
          .most_ranks = ranks.alone ? 1 : 1024,
          .has_host_memory = false,
          .rounds_to_inputs = !ranks.shared && !ranks.alone};
}

// The transports of the program that the suite is linked into.
std::vector<TransportUnderTest> transports_under_test();

}  // namespace zerorun::testing
