#include "comm/agreement.h"

#include <new>

#include "tests/harness.h"

namespace zerorun::testing {
namespace {

template <typename Received, typename Raised>
void expect_on_all_ranks(const Raised& raised, const std::string& text) {
  run_ranks(3, [&](Communicator& comm) {
    const std::unique_ptr<CpuStream> stream = make_inline_stream();
    Agreement agreement(comm, *stream);
    EXPECT_EQ(error_of<Received>([&] {
                agreement.run("step", [&] {
                  if (agreement.rank() > 0) throw raised;
                });
              }),
              "rank 1 of 3: " + text);
    int calls = 0;
    agreement.run("next step", [&] { ++calls; });
    EXPECT_EQ(calls, 1);
  });
}

TEST(Agreement, LowestFailingRankIsHeardEverywhereWithItsType) {
  expect_on_all_ranks<IoError>(IoError("disk"), "disk");
  expect_on_all_ranks<ConfigError>(ConfigError("key"), "key");
  expect_on_all_ranks<CheckpointError>(CheckpointError(""), "");
  expect_on_all_ranks<NumericError>(NumericError("nan"), "nan");
  expect_on_all_ranks<DeviceError>(DeviceError("gone"), "gone");
  expect_on_all_ranks<DeviceError>(std::bad_alloc(), "out of host memory");
  expect_on_all_ranks<InternalError>(std::runtime_error("bug"), "bug");
}

TEST(Agreement, LongTextsAreCut) {
  const std::string text(10'000, 'x');
  expect_on_all_ranks<IoError>(IoError(text), text.substr(0, 4087));
}

TEST(Agreement, NumbersReachAllRanks) {
  run_ranks(3, [](Communicator& comm) {
    const std::unique_ptr<CpuStream> stream = make_inline_stream();
    Agreement agreement(comm, *stream);
    EXPECT_EQ(agreement.reduce(agreement.rank(), ReduceOp::sum), 3);
    EXPECT_EQ(agreement.reduce(-agreement.rank(), ReduceOp::min), -2);
    EXPECT_EQ(agreement.broadcast(10 + agreement.rank()), 10);
    EXPECT_THAT(agreement.gather(std::vector<int64_t>{agreement.rank(), -1}),
                ElementsAre(0, -1, 1, -1, 2, -1));
  });
}

}  // namespace
}  // namespace zerorun::testing
