#include "offload/disk_speed.h"

#include <gmock/gmock.h>

#include <cmath>

#include "tests/paths.h"
#include "zerorun/error.h"

namespace zerorun {
namespace {

using ::testing::HasSubstr;

constexpr DiskSpeed kSlow = {0.1e9, 0.2e9};
constexpr DiskSpeed kFast = {3e9, 2e9};

TEST(DiskSpeed, ASlowDiskIsToldWithWhatAStepWillTake) {
  const std::string advice = slow_disk_advice({"/disk", 4'000'000'000, 2}, kSlow, kSlow);
  EXPECT_THAT(advice, HasSubstr("/disk is slow: 100 MB/s read and 200 MB/s written by each of 2 "
                                "ranks"));
  EXPECT_THAT(advice, HasSubstr("take about 60 s to read and write once"));
  EXPECT_THAT(advice, HasSubstr("Name a faster disk"));
  EXPECT_TRUE(is_slow(kSlow, 2));
  EXPECT_FALSE(is_slow({0.2e9, 0.2e9}, 2));
  EXPECT_TRUE(is_slow({0.2e9, 0.2e9}, 1));
}

TEST(DiskSpeed, AFastDiskIsNotBlamedForSmallBlocks) {
  const std::string advice = slow_disk_advice({"/disk", 4'000'000'000, 2}, kSlow, kFast);
  EXPECT_THAT(advice,
              HasSubstr("block_size and queue_depth in /aio make it so: their defaults give "
                        "3000 MB/s read and 2000 MB/s written"));
  EXPECT_THAT(advice, ::testing::Not(HasSubstr("faster disk")));
}

TEST(DiskSpeed, IsMeasuredWithBlocksOfAnySizeAndLittleMemory) {
  for (const int64_t block : {int64_t{64} << 10, int64_t{1} << 20, int64_t{1} << 28}) {
    for (const size_t memory : {size_t{0}, size_t{3} << 19, size_t{1} << 30}) {
      const DiskSpeed speed = measure_disk(test_paths::build(), {.block_size = block}, memory);
      EXPECT_GT(speed.read, 0.0);
      EXPECT_GT(speed.write, 0.0);
      EXPECT_TRUE(std::isfinite(speed.read) && std::isfinite(speed.write));
    }
  }
  EXPECT_THROW(measure_disk("/no/such", {}, 0), ConfigError);
}

}  // namespace
}  // namespace zerorun
