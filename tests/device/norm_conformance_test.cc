
#include "tests/device/conformance.h"
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
    std::vector<SquaresSegment> segments;
    int64_t begin = 0;
    for (const int64_t cut : cuts) {
      segments.push_back({.begin = begin, .numel = cut - begin});
      begin = cut;
    }
    device_->sum_of_squares(device_->inline_stream(), src.view(), segments, sum.view());
    return ExactSum::from_words(sum.host());
  }
};

// The order that device/cpu/norm_kernel.cc documents, in scalar code.
template <typename T>
ExactSum squares_in_order(const std::vector<T>& values) {
  ExactSum sum;
  for (size_t begin = 0; begin < values.size(); begin += kNormBlock) {
    std::array<double, 16> lanes{};
    for (size_t i = begin; i < std::min(values.size(), begin + kNormBlock); ++i) {
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
    for_types<float, Bf16, Fp16>([&](auto type) {
      const auto values = random_normal<decltype(type)>(numel, 1, 1e-3F);
      EXPECT_EQ(squares(values).words, squares_in_order(values).words) << numel;
    });
  }
}

TEST_P(NormConformance, DoesNotDependOnCutsOrThreads) {
  const std::vector<float> values = random_normal<float>(200'001, 5);
  const Words expected = squares_in_order(values).words;
  for_thread_counts([&] {
    EXPECT_EQ(squares(values).words, expected);
    EXPECT_EQ(squares(values, {256, 768, 131'072, 199'936}).words, expected);
  });
}

TEST_P(NormConformance, CountsChunksThatAreNotFinite) {
  std::vector<float> values(1000, 1.0F);
  EXPECT_EQ(squares(values).non_finite_terms(), 0);
  values[300] = kInfinity;
  values[999] = kNan;
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

// More segments than one kernel takes, from every alignment; sums that several share, and what lies
// between segments.
TEST_P(NormConformance, SumsEachSegmentByItself) {
  constexpr int64_t kSums = 7;
  constexpr int64_t kSizes[] = {1, 0, 255, 3, 256, 1000, 17, 513};
  std::vector<SquaresSegment> segments;
  int64_t end = 0;
  for (int64_t i = 0; i < 400; ++i) {
    segments.push_back({end + i % 5, kSizes[i % 8], i * i % kSums});
    end = segments.back().begin + segments.back().numel;
  }
  const std::vector<float> values = random_normal<float>(end, 6);
  std::array<ExactSum, kSums> expected;
  for (const SquaresSegment& segment : segments) {
    const auto first = values.begin() + segment.begin;
    expected[static_cast<size_t>(segment.sum)].merge(
        squares_in_order(std::vector<float>(first, first + segment.numel)));
  }
  for_thread_counts([&] {
    const auto src = array(values);
    const auto sums = array(std::vector<int64_t>(kSums * ExactSum::kWords, 0));
    device_->sum_of_squares(*stream_, src.view(), segments, sums.view());
    const std::vector<int64_t> words = sums.host();
    for (size_t i = 0; i < kSums; ++i) {
      const auto sum = std::span(words).subspan(i * ExactSum::kWords, ExactSum::kWords);
      EXPECT_EQ(ExactSum::from_words(sum).words, expected[i].words) << i;
    }
  });
}

TEST_P(NormConformance, WrongArgumentsAreErrorsAtTheCall) {
  const auto src = array(std::vector<float>(4));
  const auto sum = array(std::vector<int64_t>(ExactSum::kWords));
  const auto short_sum = array(std::vector<int64_t>(ExactSum::kWords - 1));
  const auto expect_error = [&](TensorView from, const std::vector<SquaresSegment>& segments,
                                TensorView to) {
    EXPECT_THROW(device_->sum_of_squares(*stream_, from, segments, to), InternalError);
  };
  expect_error(src.view(), {{0, 4, 0}}, short_sum.view());
  expect_error(sum.view(), {{0, 4, 0}}, sum.view());
  expect_error(src.view(), {{0, 4, 1}}, sum.view());
  expect_error(src.view(), {{1, 4, 0}}, sum.view());
  expect_error(src.view(), {{2, 2, 0}, {0, 2, 0}}, sum.view());
}

INSTANTIATE_TEST_SUITE_P(Devices, NormConformance, ::testing::ValuesIn(devices_under_test()),
                         name_of_device);

}  // namespace
}  // namespace zerorun::testing
