#include "comm/agreement.h"

#include <new>

#include "device/cpu/cpu_stream.h"
#include "tests/common.h"
#include "tests/harness.h"
#include "zerorun/error.h"

namespace zerorun {
namespace {

using testing::run_ranks;

template <typename Raised, typename Received>
void expect_on_all_ranks(const Raised& raised, const std::string& text) {
  run_ranks(3, [&](Communicator& comm) {
    const std::unique_ptr<CpuStream> stream = make_inline_stream();
    Agreement agreement(comm, *stream);
    try {
      agreement.run("step", [&] {
        if (agreement.rank() > 0) throw raised;
      });
      ADD_FAILURE() << "no error on rank " << agreement.rank();
    } catch (const Received& error) {
      EXPECT_EQ(error.what(), text);
    }
    int calls = 0;
    agreement.run("next step", [&] { ++calls; });
    EXPECT_EQ(calls, 1);
  });
}

TEST(Agreement, LowestFailingRankIsHeardEverywhereWithItsType) {
  expect_on_all_ranks<IoError, IoError>(IoError("disk"), "rank 1 of 3: disk");
  expect_on_all_ranks<ConfigError, ConfigError>(ConfigError("key"), "rank 1 of 3: key");
  expect_on_all_ranks<CheckpointError, CheckpointError>(CheckpointError(""), "rank 1 of 3: ");
  expect_on_all_ranks<NumericError, NumericError>(NumericError("nan"), "rank 1 of 3: nan");
  expect_on_all_ranks<DeviceError, DeviceError>(DeviceError("gone"), "rank 1 of 3: gone");
  expect_on_all_ranks<std::bad_alloc, DeviceError>({}, "rank 1 of 3: out of host memory");
  expect_on_all_ranks<std::runtime_error, InternalError>(std::runtime_error("bug"),
                                                         "rank 1 of 3: bug");
}

TEST(Agreement, LongTextsAreCut) {
  const std::string text(10'000, 'x');
  expect_on_all_ranks<IoError, IoError>(IoError(text), "rank 1 of 3: " + text.substr(0, 4087));
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
}  // namespace zerorun
