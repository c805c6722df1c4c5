#include "tests/checkpoint/fake_engine.h"
#include "tools/ckpt/ckpt_report.h"

namespace zerorun::testing::saved_values_test {
namespace {

// Frozen integers, saved as a tag.
SavedValues saved(const std::vector<int64_t>& values, const std::string& tag) {
  const TemporaryDirectory directory;
  FakeModel model;
  model.dtype = DType::int64;
  model.specs = {{"ids", {static_cast<int64_t>(values.size())}, "m", 0, false, ""}};
  FakeEngine engine(model, {{0, 0, static_cast<int64_t>(values.size())}}, 1);
  std::copy(values.begin(), values.end(),
            engine.state_intervals(std::nullopt)[0].param.as<int64_t>());
  save_checkpoint(engine, *make_communicator({}), {directory.string(), tag, ""});
  return {SavedModel(directory.string(), tag), 0};
}

// Doubles hold integers up to 2^53 only.
TEST(SavedValues, LargeIntegersDifferIfTheirDifferenceIsOne) {
  constexpr int64_t kLarge = int64_t{1} << 60;
  constexpr int64_t kLowest = std::numeric_limits<int64_t>::min();
  constexpr int64_t kHighest = std::numeric_limits<int64_t>::max();
  const SavedValues one = saved({kLarge, kLarge, -3, kLowest}, "one");
  const SavedValues other = saved({kLarge + 1, kLarge, 4, kHighest}, "other");
  EXPECT_EQ(one.distance(other, 0), 1);
  EXPECT_EQ(other.distance(one, 0), 1);
  EXPECT_EQ(one.distance(other, 1), 0);
  EXPECT_EQ(one.distance(other, 2), 7);
  EXPECT_EQ(one.distance(other, 3), 0x1p64);
}

}  // namespace
}  // namespace zerorun::testing::saved_values_test
