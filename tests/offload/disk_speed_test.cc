#include "offload/disk_speed.h"

#include <gmock/gmock.h>

#include <cmath>

#include "zerorun/error.h"

namespace zerorun {
namespace {

using ::testing::HasSubstr;

TEST(DiskSpeed, ASlowDiskIsToldWithWhatAStepWillTake) {
  const std::string advice = slow_disk_advice("/disk", {0.1e9, 0.2e9}, 4'000'000'000, 2);
  EXPECT_THAT(advice, HasSubstr("/disk is slow: 100 MB/s read and 200 MB/s written by each of 2 "
                                "ranks"));
  EXPECT_THAT(advice, HasSubstr("take about 60 s to read and write once"));
  EXPECT_EQ(slow_disk_advice("/disk", {0.2e9, 0.2e9}, 4'000'000'000, 2), "");
  EXPECT_NE(slow_disk_advice("/disk", {0.2e9, 0.2e9}, 4'000'000'000, 1), "");
}

TEST(DiskSpeed, IsMeasuredWithBlocksOfAnySize) {
  for (const int64_t block : {int64_t{64} << 10, int64_t{1} << 20, int64_t{1} << 28}) {
    const DiskSpeed speed = measure_disk(ZERORUN_BUILD_DIR, {.block_size = block}, {});
    EXPECT_GT(speed.read, 0.0);
    EXPECT_GT(speed.write, 0.0);
    EXPECT_TRUE(std::isfinite(speed.read) && std::isfinite(speed.write));
  }
  EXPECT_THROW(measure_disk("/no/such", {}, {}), ConfigError);
}

}  // namespace
}  // namespace zerorun
