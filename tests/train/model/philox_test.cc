#include "train/model/philox.h"

#include "tests/common.h"

namespace zerorun::train {
namespace {

// From the file kat_vectors of the authors' Random123 library.
TEST(PhiloxTest, KnownAnswers) {
  EXPECT_EQ(Philox::block({0, 0, 0, 0}, {0, 0}),
            (Philox::Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(
      Philox::block({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
      (Philox::Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(
      Philox::block({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      (Philox::Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomNormalTest, DependsOnPositionOnly) {
  const RandomStream stream{7, RandomStream::Purpose::parameters, 3};
  std::vector<float> all(40000);
  random_normal(stream, 0, 1.0F, all);
  for (int64_t begin : {0, 1, 2, 3, 5, 17, 39990}) {
    std::vector<float> part(9);
    random_normal(stream, begin, 1.0F, part);
    EXPECT_EQ(part, std::vector<float>(all.begin() + begin, all.begin() + begin + 9)) << begin;
  }
}

TEST(RandomNormalTest, HasTheMomentsOfANormalDistribution) {
  std::vector<float> values(200000);
  random_normal({1, RandomStream::Purpose::parameters, 0}, 0, 0.5F, values);
  double sum = 0.0;
  double squares = 0.0;
  double fourth = 0.0;
  for (double value : values) {
    sum += value;
    squares += value * value;
    fourth += value * value * value * value;
  }
  const auto count = static_cast<double>(values.size());
  EXPECT_NEAR(sum / count, 0.0, 0.005);
  EXPECT_NEAR(squares / count, 0.25, 0.005);
  EXPECT_NEAR(fourth / count, 3 * 0.25 * 0.25, 0.01);
}

TEST(RandomNormalTest, StreamsDiffer) {
  const auto first = [](const RandomStream& stream) {
    float value = 0.0F;
    random_normal(stream, 0, 1.0F, {&value, 1});
    return value;
  };
  const RandomStream base{7, RandomStream::Purpose::parameters, 3};
  EXPECT_NE(first(base), first({8, RandomStream::Purpose::parameters, 3}));
  EXPECT_NE(first(base), first({uint64_t{7} << 32, RandomStream::Purpose::parameters, 3}));
  EXPECT_NE(first(base), first({7, RandomStream::Purpose::sampling, 3}));
  EXPECT_NE(first(base), first({7, RandomStream::Purpose::parameters, 4}));
}

TEST(RandomUniformTest, FillsTheUnitInterval) {
  const RandomStream stream{7, RandomStream::Purpose::sampling, 0};
  double sum = 0.0;
  for (uint64_t i = 0; i < 10000; ++i) {
    const double value = random_uniform(stream, i);
    ASSERT_GE(value, 0.0);
    ASSERT_LT(value, 1.0);
    sum += value;
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.01);
}

}  // namespace
}  // namespace zerorun::train
