#pragma once

#include "tests/common.h"
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

// The transports of the program that the suite is linked into.
std::vector<TransportUnderTest> transports_under_test();

}  // namespace zerorun::testing
