#include "comm/collective_limits.h"

#include "tests/harness.h"

namespace zerorun::testing {
namespace {

TEST(CollectiveLimitsTest, EveryRankKnowsWhatTheSlowestReached) {
  std::array<std::array<double, kCollectives>, 3> found{};
  run_ranks(3, [&](Communicator& comm) {
    const auto device = make_cpu_device();
    found.at(static_cast<size_t>(comm.rank())) = measure_collectives(comm, *device);
  });
  for (const Collective op :
       {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather}) {
    const auto at = static_cast<size_t>(op);
    EXPECT_GT(found[0][at], 0.0);
    EXPECT_EQ(found[0][at], found[1][at]);
    EXPECT_EQ(found[0][at], found[2][at]);
  }
  EXPECT_EQ(found[0][static_cast<size_t>(Collective::broadcast)], 0.0);
}

TEST(CollectiveLimitsTest, OneRankHasNone) {
  run_ranks(1, [&](Communicator& comm) {
    const auto device = make_cpu_device();
    EXPECT_EQ(measure_collectives(comm, *device), (std::array<double, kCollectives>{}));
  });
}

}  // namespace
}  // namespace zerorun::testing
