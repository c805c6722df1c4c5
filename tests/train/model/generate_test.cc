#include "tests/common.h"
#include "tests/train/model/golden_model.h"
#include "train/model/philox.h"

namespace zerorun::train::testing {
namespace {

TEST(DrawTokenTest, FrequenciesFollowTheSoftmax) {
  const std::vector<float> logits = {0.0F, 1.0F, 2.0F, -1.0F};
  constexpr double kTemperature = 0.5;
  constexpr int kDraws = 100000;
  std::map<int32_t, int> counts;
  for (int i = 0; i < kDraws; ++i) {
    ++counts[draw_token(logits, {.temperature = kTemperature, .top_k = 3}, (i + 0.5) / kDraws)];
  }
  double sum = 0.0;
  for (int token : {0, 1, 2}) sum += std::exp(token / kTemperature);
  for (int token : {0, 1, 2}) {
    EXPECT_NEAR(counts[token], kDraws * std::exp(token / kTemperature) / sum, 2) << token;
  }
  EXPECT_EQ(counts.count(3), 0U);
}

TEST(DrawTokenTest, ZeroTemperatureTakesTheMostLikelyAlsoOfADivergedModel) {
  EXPECT_EQ(draw_token(std::vector<float>{1.0F, 3.0F, 3.0F, -2.0F}, {.temperature = 0.0}, 0.99), 1);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(draw_token(std::vector<float>{nan, 1.0F, nan}, {.temperature = 0.0}, 0.5), 1);
  const int32_t token = draw_token(std::vector<float>{nan, nan}, {}, 0.5);
  EXPECT_TRUE(token == 0 || token == 1);
}

// The tokens that follow when every logit is computed from scratch; of prompts that are longer than
// the context, too.
TEST(GenerateTest, KeptKeysGiveTheSameTextAsComputingAllAgain) {
  constexpr auto kContext = static_cast<size_t>(Golden::kSeqLen);
  const SamplingOptions options{.tokens = 30, .temperature = 1.0, .top_k = 5, .seed = 4};
  for (const bool recompute : {false, true}) {
    GoldenModel model(cpu_kernels(), {.recompute = recompute});
    for (std::vector<int32_t> window : {std::vector<int32_t>{1, 2, 3}, std::vector(20, 5)}) {
      const std::vector<int32_t> generated = generate(model.model(), window, options);
      ASSERT_EQ(generated.size(), 30U);
      for (size_t i = 0; i < generated.size(); ++i) {
        if (window.size() > kContext) window.erase(window.begin(), window.end() - 6);
        const auto logits = model.model().logits(window).last(37);
        const RandomStream stream{options.seed, RandomStream::Purpose::sampling, 0};
        window.push_back(draw_token(logits, options, random_uniform(stream, i)));
        EXPECT_EQ(generated[i], window.back()) << i;
      }
    }
  }
}

TEST(SampleTextTest, KeepsTextAndReplacesTheRest) {
  constexpr const char* kText = "def f():\n\treturn \u00e9 \u20ac \U0001F600\n";
  EXPECT_EQ(sample_text(kText), kText);
  EXPECT_EQ(sample_text("a\x1b[31m\r\x7f"), "a\uFFFD[31m\uFFFD\uFFFD");
  EXPECT_EQ(sample_text(std::string_view("\0", 1)), "\uFFFD");
  EXPECT_EQ(sample_text("\x8b"), "\uFFFD");            // no lead byte
  EXPECT_EQ(sample_text("\xe2\x82"), "\uFFFD\uFFFD");  // cut short
  EXPECT_EQ(sample_text("\xc0\xaf"), "\uFFFD\uFFFD");  // longer than needed
  EXPECT_EQ(sample_text("\xe0\x80\xaf"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(sample_text("\xed\xa0\x80"), "\uFFFD\uFFFD\uFFFD");            // a surrogate
  EXPECT_EQ(sample_text("\xf4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");  // beyond U+10FFFF
  EXPECT_EQ(sample_text("\xc2\x9b"), "\uFFFD\uFFFD");  // a control character of two bytes
  EXPECT_EQ(sample_text("\xe2\x28\xa1"), "\uFFFD(\uFFFD");
}

// From the file kat_vectors of the authors' Random123 library.
TEST(PhiloxTest, KnownAnswers) {
  EXPECT_EQ(Philox::block({0, 0, 0, 0}, {0, 0}),
            (Philox::Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
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
  const auto moment = [&](int power) {
    double sum = 0.0;
    for (const double value : values) sum += std::pow(value / 0.5, power);
    return sum / static_cast<double>(values.size());
  };
  EXPECT_NEAR(moment(1), 0.0, 0.01);
  EXPECT_NEAR(moment(2), 1.0, 0.02);
  EXPECT_NEAR(moment(4), 3.0, 0.16);
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
}  // namespace zerorun::train::testing
