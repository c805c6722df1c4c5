#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "tests/device/conformance.h"
#include "zerorun/error.h"
#include "zerorun/exact_sum.h"

namespace zerorun::testing {
namespace {

using Words = std::array<int64_t, ExactSum::kWords>;

class NormConformance : public DeviceConformance {
 protected:
  // The words after adding the squares of `values`, cut at `cuts` elements.
  template <typename T>
  ExactSum squares(const std::vector<T>& values, std::vector<int64_t> cuts = {}) {
    const auto src = array(values);
    const auto sum = array(std::vector<int64_t>(ExactSum::kWords, 0));
    cuts.push_back(static_cast<int64_t>(values.size()));
    int64_t begin = 0;
    for (const int64_t cut : cuts) {
      device_->sum_of_squares(device_->inline_stream(), src.view().slice(begin, cut - begin),
                              sum.view());
      begin = cut;
    }
    device_->inline_stream().synchronize();
    return ExactSum::from_words(sum.host());
  }
};

// The order that device/cpu/norm_kernel.cc documents, in scalar code.
template <typename T>
ExactSum squares_in_order(const std::vector<T>& values) {
  ExactSum sum;
  for (size_t begin = 0; begin < values.size(); begin += kNormChunk) {
    std::array<double, 16> lanes{};
    for (size_t i = begin; i < std::min(values.size(), begin + kNormChunk); ++i) {
      const double value = to_fp32(values[i]);
      lanes[i % 16] += value * value;
    }
    for (size_t width = 8; width > 0; width /= 2) {
      for (size_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
    }
    sum.add(lanes[0]);
  }
  return sum;
}

TEST_P(NormConformance, SumsInTheDocumentedOrder) {
  for (const int64_t numel : {0, 1, 15, 16, 17, 255, 256, 257, 1000, 100'003}) {
    const std::vector<float> fp32 = random_normal<float>(numel, 1, 1e-3F);
    EXPECT_EQ(squares(fp32).words, squares_in_order(fp32).words) << numel;
    const std::vector<Bf16> bf16 = random_normal<Bf16>(numel, 2, 1e-3F);
    EXPECT_EQ(squares(bf16).words, squares_in_order(bf16).words) << numel;
    const std::vector<Fp16> fp16 = random_normal<Fp16>(numel, 3, 1e-3F);
    EXPECT_EQ(squares(fp16).words, squares_in_order(fp16).words) << numel;
  }
}

TEST_P(NormConformance, IsAccurate) {
  const std::vector<float> values = random_normal<float>(50'000, 4);
  long double expected = 0;
  for (const float value : values) expected += static_cast<long double>(value) * value;
  EXPECT_NEAR(squares(values).value() / static_cast<double>(expected), 1.0, 1e-15);
}

TEST_P(NormConformance, DoesNotDependOnCutsOrThreads) {
  const std::vector<float> values = random_normal<float>(200'001, 5);
  const Words expected = squares_in_order(values).words;
  for_thread_counts([&] {
    EXPECT_EQ(squares(values).words, expected);
    EXPECT_EQ(squares(values, {256, 768, 131'072, 199'936}).words, expected);
  });
}

TEST_P(NormConformance, AddsToTheSum) {
  const std::vector<float> values = {3.0F, 4.0F};
  const auto src = array(values);
  const auto sum = array(std::vector<int64_t>(ExactSum::kWords, 0));
  for (int i = 0; i < 3; ++i) device_->sum_of_squares(*stream_, src.view(), sum.view());
  stream_->synchronize();
  EXPECT_EQ(ExactSum::from_words(sum.host()).value(), 75.0);
}

TEST_P(NormConformance, CountsChunksThatAreNotFinite) {
  std::vector<float> values(1000, 1.0F);
  EXPECT_EQ(squares(values).non_finite_terms(), 0);
  values[300] = std::numeric_limits<float>::infinity();
  values[999] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(squares(values).non_finite_terms(), 2);
  EXPECT_EQ(squares(std::vector<Bf16>{{0x7f80}}).non_finite_terms(), 1);  // infinity
  EXPECT_EQ(squares(std::vector<Fp16>{{0x7e00}}).non_finite_terms(), 1);  // NaN
}

TEST_P(NormConformance, CoversTheRangeOfFp32) {
  const float smallest = std::numeric_limits<float>::denorm_min();
  const float largest = std::numeric_limits<float>::max();
  EXPECT_EQ(squares(std::vector<float>(4, smallest)).value(), 0x1p-296);
  const double square = static_cast<double>(largest) * largest;
  EXPECT_EQ(squares(std::vector<float>(512, largest)).value(), 512 * square);
}

TEST_P(NormConformance, RejectsASumOfAnotherShape) {
  const auto src = array(std::vector<float>(4));
  const auto short_sum = array(std::vector<int64_t>(ExactSum::kWords - 1));
  EXPECT_THROW(device_->sum_of_squares(*stream_, src.view(), short_sum.view()), InternalError);
  EXPECT_THROW(device_->sum_of_squares(*stream_, short_sum.view(), short_sum.view()),
               InternalError);
}

INSTANTIATE_TEST_SUITE_P(Devices, NormConformance, ::testing::ValuesIn(devices_under_test()),
                         name_of_device);

}  // namespace
}  // namespace zerorun::testing
