#include "comm/shm/reduce_kernels.h"

#include <hwy/targets.h>

#include "tests/comm/reference.h"

namespace zerorun::testing {
namespace {

// Runs `body` on each instruction set that this machine has.
void on_every_target(const std::function<void(const std::string&)>& body) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    body(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(0);
  }
}

struct Case {
  DType dtype;
  DType out_dtype;
  ReduceOp op;
};
std::string name_of_case(const ::testing::TestParamInfo<Case>& info) {
  constexpr std::array<const char*, 3> kOps = {"sum", "max", "min"};
  return fmt::format("{}_to_{}_{}", name_of(info.param.dtype), name_of(info.param.out_dtype),
                     kOps[static_cast<size_t>(info.param.op)]);
}

class ReduceTest : public ::testing::TestWithParam<Case> {};

TEST_P(ReduceTest, EqualsTheScalarReferenceOnEveryInstructionSet) {
  const auto [dtype, out_dtype, op] = GetParam();
  // The last one is stored past the caches.
  const int64_t large = (int64_t{2} << 20) / static_cast<int64_t>(size_of(out_dtype)) + 1021;
  for (const auto& [numel, ranks] :
       each(std::array{int64_t{0}, int64_t{1}, int64_t{63}, int64_t{64}, int64_t{1021}, large},
            std::array<size_t, 8>{1, 2, 3, 4, 7, 8, 9, 13})) {
    if (numel == large && ranks != 3) continue;
    for (const Output output : {Output::overwrite, Output::accumulate}) {
      if (numel == large && output == Output::accumulate) continue;
      std::vector<Bytes> inputs;
      std::vector<const std::byte*> sources;
      for (size_t rank = 0; rank < ranks; ++rank) {
        inputs.push_back(random_values(dtype, numel, static_cast<unsigned>(rank)));
      }
      for (const Bytes& input : inputs) sources.push_back(input.data());
      const Bytes before = random_values(out_dtype, numel, 99);
      Bytes expected = before;
      reference_reduce(inputs, dtype, op, output, out_dtype, expected);
      on_every_target([&](const std::string& target) {
        Bytes out = before;
        reduce({sources, dtype, op, output}, view(out, out_dtype));
        expect_same(expected, view(out, out_dtype), fmt::format("{} ranks, {}", ranks, target));
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, ReduceTest,
                         ::testing::Values(Case{DType::fp32, DType::fp32, ReduceOp::sum},
                                           Case{DType::fp32, DType::fp32, ReduceOp::max},
                                           Case{DType::fp32, DType::fp32, ReduceOp::min},
                                           Case{DType::fp32, DType::bf16, ReduceOp::sum},
                                           Case{DType::fp32, DType::fp16, ReduceOp::sum},
                                           Case{DType::bf16, DType::bf16, ReduceOp::sum},
                                           Case{DType::bf16, DType::fp32, ReduceOp::sum},
                                           Case{DType::fp16, DType::fp16, ReduceOp::sum},
                                           Case{DType::fp16, DType::fp32, ReduceOp::sum},
                                           Case{DType::int64, DType::int64, ReduceOp::sum},
                                           Case{DType::int64, DType::int64, ReduceOp::max},
                                           Case{DType::int64, DType::int64, ReduceOp::min}),
                         name_of_case);

// All 2^16 values of a 16-bit dtype, so every rounding and every special value is met; NaNs keep or
// lose their bits as in zerorun/dtype.h, whatever the instruction set.
template <typename T>
void expect_every_value_survives(T (*rounded)(float)) {
  std::vector<T> values(1 << 16);
  for (size_t i = 0; i < values.size(); ++i) values[i].bits = static_cast<uint16_t>(i);
  const std::array<const std::byte*, 1> sources = {
      reinterpret_cast<const std::byte*>(values.data())};
  on_every_target([&](const std::string& target) {
    std::vector<float> wide(values.size());
    std::vector<T> back(values.size());
    reduce({sources, dtype_of<T>()}, view_of(std::span(wide)));
    reduce({sources, dtype_of<T>()}, view_of(std::span(back)));
    for (size_t i = 0; i < values.size(); ++i) {
      const float expected = to_float(values[i]);
      ASSERT_EQ(std::bit_cast<uint32_t>(expected), std::bit_cast<uint32_t>(wide[i])) << target;
      ASSERT_EQ(rounded(expected).bits, back[i].bits) << target;
    }
  });
}
TEST(ReduceKernelsTest, KeepsEveryBf16Value) { expect_every_value_survives<Bf16>(to_bf16); }
TEST(ReduceKernelsTest, KeepsEveryFp16Value) { expect_every_value_survives<Fp16>(to_fp16); }

TEST(ReduceKernelsTest, MaxAndMinReportNaN) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> a(37, 1.0F);
  std::vector<float> b(37, 2.0F);
  a[3] = kNaN;
  b[36] = kNaN;
  const std::array<const std::byte*, 2> sources = {reinterpret_cast<const std::byte*>(a.data()),
                                                   reinterpret_cast<const std::byte*>(b.data())};
  for (const ReduceOp op : {ReduceOp::max, ReduceOp::min}) {
    std::vector<float> out(37);
    reduce({sources, DType::fp32, op}, view_of(std::span(out)));
    for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(std::isnan(out[i]), i == 3 || i == 36);
  }
}

TEST(ReduceKernelsTest, CopiesEverySizeAndAlignment) {
  on_every_target([](const std::string& target) {
    for (const auto& [nbytes, shift] :
         each(std::array<size_t, 4>{0, 1, 1000, (2 << 20) + 77}, std::array<size_t, 3>{0, 1, 31})) {
      const Bytes from = random_values(DType::uint8, static_cast<int64_t>(nbytes + 64), 5);
      Bytes to(nbytes + 64);
      copy_bytes(to.data() + shift, from.data() + 3, nbytes);
      Bytes expected(to.size());
      std::copy_n(from.begin() + 3, nbytes, expected.begin() + static_cast<ptrdiff_t>(shift));
      expect_same(expected, view(to, DType::uint8), target);
    }
  });
}

}  // namespace
}  // namespace zerorun::testing
