// Everything that kernels and models do (tests/train/*_conformance.h), with train's CUDA kernels on
// a fake of CUDA and cuBLASLt: the kernels run as C++, products in the plain loops of the fake.
#include "train/model/kernels.h"

#include "device/cuda/cuda_device.h"
#include "testing/fake_cublas_lt/cublas_lt.h"
#include "testing/fake_cuda/fake_cuda.h"
#include "tests/common.h"
#include "tests/error_of.h"
#include "tests/train/model/kernels_conformance.h"
#include "tests/train/model/model_conformance.h"
#include "train/cuda/cuda_kernels.h"

namespace zerorun::train::testing {
namespace {

using fake::FakeCuda;

std::shared_ptr<Device> make_device(std::chrono::microseconds delay) {
  FakeCuda::instance().set_delay(delay);
  return std::make_shared<CudaDevice>(0, 0);
}

std::vector<KernelsUnderTest> cases() {
  const auto make = [](const cuda::CublasLt& lt, KernelOptions options = {}) {
    return [lt, options](Device& device, DType dtype) mutable {
      options.dtype = dtype;
      return cuda::make_cuda_kernels(device, options, lt, {nullptr, "a test"});
    };
  };
  const KernelOptions separate{.gelu_epilogue = false, .bias_gradient_epilogue = false};
  const auto plain_device = [] { return make_device(std::chrono::microseconds(0)); };
  const auto slow_device = [] { return make_device(std::chrono::microseconds(200)); };
  std::vector<KernelsUnderTest> all =
      with_every_dtype({"cuda", plain_device, make(fake_cublas_lt())});
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    all.push_back(
        {"cuda_without_epilogues", plain_device, make(fake_cublas_lt_without_epilogues()), dtype});
  }
  all.push_back(
      {"cuda_with_separate_kernels", plain_device, make(fake_cublas_lt(), separate), DType::bf16});
  all.push_back({"cuda_with_delays", slow_device, make(fake_cublas_lt()), DType::bf16});
  return all;
}

ZR_INSTANTIATE_KERNELS_CONFORMANCE(cases());
INSTANTIATE_TEST_SUITE_P(Kernels, ModelConformance, ::testing::ValuesIn(cases()), name_of_case);

// Checks that hold after every test of this program.
class Clean : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo& /*info*/) override { FakeCuda::instance().reset(); }
  void OnTestEnd(const ::testing::TestInfo& /*info*/) override {
    EXPECT_EQ(FakeCuda::instance().violations(), std::vector<std::string>());
    EXPECT_EQ(FakeCuda::instance().leaks(), std::vector<std::string>());
  }
};
const bool kListening = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new Clean);
  return true;
}();

}  // namespace
}  // namespace zerorun::train::testing

namespace zerorun::train::cuda {
namespace {

constexpr int64_t kMiB = 1 << 20;

AttentionShape gpt2(int64_t batch, int64_t seq_len) {
  return {.batch = batch, .seq_len = seq_len, .heads = 12, .width = 768};
}

TEST(AttentionWorkspaceTest, GrowsWithTheSquareOfTheSequenceUnlessItIsFast) {
  EXPECT_EQ(attention_workspace(gpt2(16, 1024)), 384 * kMiB);
  EXPECT_EQ(attention_workspace(gpt2(1, 65)), 2 * 12 * 128 * 128);  // in whole tiles
  EXPECT_EQ(fast_attention_workspace(gpt2(16, 1024)), 4.0 * 16 * 1024 * (768 + 12));
  EXPECT_TRUE(cudnn_has_attention(gpt2(16, 1024), DType::bf16));
  EXPECT_FALSE(cudnn_has_attention(gpt2(16, 1024), DType::fp32));
}

TEST(AttentionWorkspaceTest, ALimitForAttentionThatIsNotUsedIsRefused) {
  EXPECT_NO_THROW(refuse_unused({}, "no cuDNN"));
  for (const auto& [options, name] :
       {std::pair(KernelOptions{.attention_workspace = 0}, "--attention_workspace"),
        {KernelOptions{.fast_attention = true}, "--fast_attention"}}) {
    EXPECT_THAT(error_of<ConfigError>([&] { refuse_unused(options, "no cuDNN"); }),
                AllOf(HasSubstr(name), HasSubstr("no cuDNN")));
  }
}

// On Blackwell cuDNN has it from 9.18 on.
TEST(LacksAttentionTest, WhereTheBackwardHasNoOrderedKernelTheWarningSaysWhatHelps) {
  EXPECT_THAT(
      lacks_attention(gpt2(16, 1024), true, "below 9.18.0"),
      AllOf(HasSubstr("deterministic backward"), HasSubstr("16 x 1024"),
            HasSubstr("12 heads of 64"), HasSubstr("--fast_attention"), HasSubstr("below 9.18.0")));
  EXPECT_THAT(lacks_attention(gpt2(16, 1024), false, "too old"),
              AllOf(HasSubstr("has no attention for"), Not(HasSubstr("--fast_attention"))));
}

TEST(AttentionWorkspaceTest, TheLimitIsHeldWhereCudnnCanOrItIsEnough) {
  EXPECT_NO_THROW(check_attention_workspace(gpt2(16, 1024), 0, {92500, 9}));
  EXPECT_NO_THROW(check_attention_workspace(gpt2(16, 1024), 384 * kMiB, {91000, 8}));
  for (const CudnnVersion version : {CudnnVersion{92499, 9}, CudnnVersion{92500, 8}}) {
    EXPECT_THAT(
        error_of<ConfigError>(
            [&] { check_attention_workspace(gpt2(16, 1024), 384 * kMiB - 1, version); }),
        AllOf(HasSubstr("--attention_workspace"), HasSubstr("384.0 MiB"),
              HasSubstr("16 x 1024 positions and 12 heads"), HasSubstr("smaller micro-batch")));
  }
}

}  // namespace
}  // namespace zerorun::train::cuda
