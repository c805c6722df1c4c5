#include "amp/clip.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/paths.h"

namespace zerorun {
namespace {

TEST(ClipFactor, MatchesTorch) {
  std::ifstream file(test_paths::tests() + "/optim/data/adam_golden.json");
  const nlohmann::json golden = nlohmann::json::parse(file);
  ASSERT_FALSE(golden["clip"].empty());
  for (const auto& run : golden["clip"]) {
    const double factor = run["factor"];
    EXPECT_NEAR(clip_factor(run["norm"], run["max_norm"]), factor, 1e-14 * factor);
  }
}

TEST(ClipFactor, IsOneWhenOffOrSmallEnough) {
  EXPECT_EQ(clip_factor(1e30, 0.0), 1.0);
  EXPECT_EQ(clip_factor(0.0, 1.0), 1.0);
  EXPECT_EQ(clip_factor(0.5, 1.0), 1.0);
}

TEST(ClipFactor, NeverExceedsOneAndNeverRaisesTheNorm) {
  for (double norm = 1e-9; norm < 1e9; norm *= 3) {
    const double factor = clip_factor(norm, 2.0);
    EXPECT_GT(factor, 0.0);
    EXPECT_LE(factor, 1.0);
    EXPECT_LE(norm * factor, 2.0);
  }
}

TEST(ClipFactor, KeepsInfinityAndNanVisible) {
  EXPECT_EQ(clip_factor(std::numeric_limits<double>::infinity(), 1.0), 0.0);
  EXPECT_TRUE(std::isnan(clip_factor(std::numeric_limits<double>::quiet_NaN(), 1.0)));
}

}  // namespace
}  // namespace zerorun
