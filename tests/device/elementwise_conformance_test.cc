#include "tests/device/conformance.h"
#include "zerorun/exact_sum.h"

namespace zerorun::testing {
namespace {

struct ElementwiseConformance : DeviceConformance {
  template <typename Src, typename Dst>
  std::vector<Dst> cast(const std::vector<Src>& values) {
    const auto src = array(values);
    const auto dst = array(std::vector<Dst>(values.size()), 3);
    device_->cast(*stream_, src, dst);
    return dst.host();
  }

  template <typename T>
  void check_fill(const std::vector<float>& values) {
    for (const auto& [value, numel] : each(values, std::array{0, 1, 31, 1000, 70001})) {
      const auto dst = array(std::vector<T>(static_cast<size_t>(numel)), 1);
      device_->fill(*stream_, dst, value);
      if constexpr (std::is_integral_v<T>) {
        EXPECT_EQ(dst.host(), std::vector<T>(static_cast<size_t>(numel), static_cast<T>(value)));
      } else {
        const std::vector<uint32_t> expected(static_cast<size_t>(numel),
                                             bits_of(from_fp32<T>(value)));
        EXPECT_EQ(bits_of(dst.host()), expected);
      }
    }
  }

  template <typename Src, typename Dst>
  void check_add() {
    for (const int64_t numel : {0, 1, 15, 16, 1003, 40000}) {
      const std::vector<Src> a = random_normal<Src>(numel, 1);
      const std::vector<Dst> b = random_normal<Dst>(numel, 2, 100.0F);
      std::vector<uint32_t> expected;
      for (size_t i = 0; i < a.size(); ++i) {
        expected.push_back(bits_of(from_fp32<Dst>(to_fp32(b[i]) + to_fp32(a[i]))));
      }
      const auto src = array(a, 1);
      const auto dst = array(b, 3);
      device_->add(*stream_, src, dst);
      EXPECT_EQ(bits_of(dst.host()), expected);
    }
  }

  // Many tensors in one call, every second of which is added.
  template <typename Src, typename Dst>
  void check_copy() {
    std::vector<std::unique_ptr<DeviceArray<Src>>> sources;
    std::vector<std::unique_ptr<DeviceArray<Dst>>> targets;
    std::vector<std::vector<uint32_t>> expected;
    std::vector<TensorCopy> copies;
    const std::vector<int64_t> sizes = {0, 1, 7, 64, 255, 1003, 20000};
    for (int64_t i = 0; i < 150; ++i) {
      const int64_t numel = i < 140 ? i % 9 : sizes[static_cast<size_t>(i) % sizes.size()];
      const auto seed = static_cast<unsigned>(i);
      const std::vector<Src> from = random_normal<Src>(numel, seed);
      const std::vector<Dst> to = random_normal<Dst>(numel, seed + 1000);
      const bool accumulate = i % 2 == 1;
      std::vector<uint32_t>& bits = expected.emplace_back();
      for (size_t k = 0; k < from.size(); ++k) {
        const float before = accumulate ? to_fp32(to[k]) : 0.0F;
        const float value = to_fp32(from[k]);
        bits.push_back(bits_of(from_fp32<Dst>(accumulate ? before + value : value)));
      }
      sources.push_back(std::make_unique<DeviceArray<Src>>(*device_, *stream_, from, i % 3));
      targets.push_back(std::make_unique<DeviceArray<Dst>>(*device_, *stream_, to, i % 5));
      copies.push_back({sources.back()->view(), targets.back()->view(), accumulate});
    }
    device_->copy(*stream_, copies);
    stream_->synchronize();
    for (size_t i = 0; i < targets.size(); ++i) EXPECT_EQ(bits_of(targets[i]->host()), expected[i]);
  }

  template <typename T>
  void check_scale() {
    for (const int64_t numel : {0, 1, 1003}) {
      const std::vector<T> values = random_normal<T>(numel, 3);
      std::vector<uint32_t> expected;
      for (const T value : values) expected.push_back(bits_of(from_fp32<T>(to_fp32(value) * 0.3F)));
      const auto dst = array(values, 1);
      device_->scale(*stream_, dst, 0.3F);
      EXPECT_EQ(bits_of(dst.host()), expected);
    }
  }
};

template <typename T>
std::vector<T> all_16_bit_values() {
  std::vector<T> values;
  for (uint32_t bits = 0; bits <= 0xffffU; ++bits) values.push_back({static_cast<uint16_t>(bits)});
  return values;
}

// Random bit patterns (all magnitudes, subnormals, infinities, NaNs), and for every 16-bit value
// the midpoint to the next one with its neighbours, where rounding decides.
template <typename T>
std::vector<float> values_that_round() {
  std::vector<float> values;
  std::mt19937 random(11);
  for (int i = 0; i < 100'000; ++i) {
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  }
  for (const T value : all_16_bit_values<T>()) {
    const float low = to_float(value);
    const float high = to_float(T{static_cast<uint16_t>(value.bits + 1)});
    const float middle = low / 2 + high / 2;
    if (!std::isfinite(middle)) continue;
    values.insert(values.end(),
                  {middle, std::nextafter(middle, low), std::nextafter(middle, high)});
  }
  using Limits = std::numeric_limits<float>;
  values.insert(values.end(),
                {0.0F, -0.0F, kInfinity, -kInfinity, Limits::max(), Limits::lowest(),
                 Limits::denorm_min(), -Limits::denorm_min(), 65519.996F, 65520.0F, 65504.0F});
  for (const uint32_t nan : {0x7f800001U, 0xff800001U, 0x7fffffffU, 0xffffffffU, 0x7fc00000U}) {
    values.push_back(std::bit_cast<float>(nan));
  }
  return values;
}

template <typename Dst, typename Src>
std::vector<uint32_t> bits_of_conversion(const std::vector<Src>& values) {
  std::vector<uint32_t> bits;
  for (const Src value : values) bits.push_back(bits_of(from_fp32<Dst>(to_fp32(value))));
  return bits;
}

TEST_P(ElementwiseConformance, CopyTakesManyTensors) {
  check_copy<float, float>();
  check_copy<Bf16, Bf16>();
  check_copy<Fp16, Fp16>();
  check_copy<Bf16, float>();
  check_copy<float, Bf16>();
}

TEST_P(ElementwiseConformance, FillWritesTheRoundedValueAndNothingElse) {
  check_fill<float>({0.0F, -0.0F, 1.1F});
  check_fill<Bf16>({0.0F, 1.1F});
  check_fill<Fp16>({0.0F, 1.1F});
  check_fill<int64_t>({0.0F, -3.0F});
  check_fill<uint8_t>({0.0F, 200.0F});
}

// Exact where that is wider, else rounded once to nearest even; NaNs stay.
TEST_P(ElementwiseConformance, CastRoundsOnceToNearestEvenAndKeepsNan) {
  const auto check = [this]<typename Dst, typename Src>(Dst, const std::vector<Src>& values) {
    EXPECT_EQ(bits_of(cast<Src, Dst>(values)), bits_of_conversion<Dst>(values));
  };
  check(float{}, all_16_bit_values<Bf16>());
  check(float{}, all_16_bit_values<Fp16>());
  check(Bf16{}, values_that_round<Bf16>());
  check(Fp16{}, values_that_round<Fp16>());
  check(Fp16{}, all_16_bit_values<Bf16>());
  check(Bf16{}, all_16_bit_values<Fp16>());
}

TEST_P(ElementwiseConformance, CastAndCopyToTheSameTypeKeepBits) {
  const std::vector<float> values = values_that_round<Bf16>();
  EXPECT_EQ(bits_of(cast<float, float>(values)), bits_of(values));
  const std::vector<Fp16> halves = all_16_bit_values<Fp16>();
  EXPECT_EQ(bits_of(cast<Fp16, Fp16>(halves)), bits_of(halves));
  const std::vector<int64_t> words = {0, -1, std::numeric_limits<int64_t>::min(), 1LL << 60};
  EXPECT_EQ((cast<int64_t, int64_t>(words)), words);
  const std::vector<uint8_t> bytes = {0, 1, 255};
  EXPECT_EQ((cast<uint8_t, uint8_t>(bytes)), bytes);
  const auto same = array(words);
  device_->cast(*stream_, same, same);
  const auto source = array(halves);
  const auto copied = array(std::vector<Fp16>(halves.size()), 1);
  device_->copy(*stream_, std::vector<TensorCopy>{{source, copied}});
  EXPECT_EQ(same.host(), words);
  EXPECT_EQ(bits_of(copied.host()), bits_of(halves));
}

TEST_P(ElementwiseConformance, AddComputesInFp32AndRoundsOnce) {
  for_types<float, Bf16, Fp16>([this](auto src) {
    for_types<float, Bf16, Fp16>([this](auto dst) { check_add<decltype(src), decltype(dst)>(); });
  });
}

TEST_P(ElementwiseConformance, ScaleComputesInFp32AndRoundsOnce) {
  for_types<float, Bf16, Fp16>([this](auto type) { check_scale<decltype(type)>(); });
}

TEST_P(ElementwiseConformance, EmptyViewsNeedNoMemory) {
  const TensorView none = {nullptr, 0, DType::fp32};
  const TensorView none16 = {nullptr, 0, DType::bf16};
  device_->upload(*stream_, nullptr, none);
  device_->download(*stream_, none, nullptr);
  device_->fill(*stream_, none, 1.0F);
  device_->cast(*stream_, none, none16);
  device_->add(*stream_, none, none16);
  device_->scale(*stream_, none, 2.0F);
  for (const size_t segments : {0, 1}) {
    update({.master = none, .grad = none, .param = none16, .states = {none, none}},
           std::vector<UpdateSegment>(segments));
  }
  device_->orthogonalize(*stream_, none, 0, 4, {}, none);
  stream_->synchronize();
}

TEST_P(ElementwiseConformance, WrongArgumentsAreErrorsAtTheCall) {
  const auto fp32 = array(std::vector<float>(4));
  const auto short32 = array(std::vector<float>(3));
  const auto int64 = array(std::vector<int64_t>(4));
  EXPECT_THROW(device_->cast(*stream_, fp32, int64), InternalError);
  EXPECT_THROW(device_->cast(*stream_, fp32, short32), InternalError);
  EXPECT_THROW(device_->add(*stream_, short32, fp32), InternalError);
  EXPECT_THROW(device_->add(*stream_, int64, int64), InternalError);
  EXPECT_THROW(device_->scale(*stream_, int64, 2.0F), InternalError);
  stream_->synchronize();
}

ZR_ON_ALL_DEVICES(ElementwiseConformance);

using Words = std::array<int64_t, ExactSum::kWords>;

struct NormConformance : DeviceConformance {
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
    device_->sum_of_squares(device_->inline_stream(), src, segments, sum);
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
    device_->sum_of_squares(*stream_, src, segments, sums);
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
  expect_error(src, {{0, 4, 0}}, short_sum);
  expect_error(sum, {{0, 4, 0}}, sum);
  expect_error(src, {{0, 4, 1}}, sum);
  expect_error(src, {{1, 4, 0}}, sum);
  expect_error(src, {{2, 2, 0}, {0, 2, 0}}, sum);
}

ZR_ON_ALL_DEVICES(NormConformance);

}  // namespace
}  // namespace zerorun::testing
