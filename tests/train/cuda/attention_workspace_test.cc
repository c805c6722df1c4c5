#include "tests/common.h"
#include "tests/error_of.h"
#include "train/cuda/cuda_kernels.h"
#include "train/model/kernels.h"
#include "zerorun/error.h"

namespace zerorun::train::cuda {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr CudnnVersion kOrdered{92500, 9};

AttentionShape gpt2(int64_t batch, int64_t seq_len) {
  return {.batch = batch, .seq_len = seq_len, .heads = 12, .width = 768};
}

TEST(AttentionWorkspaceTest, GrowsWithTheSquareOfTheSequenceInWholeTiles) {
  EXPECT_EQ(attention_workspace(gpt2(16, 1024)), 384 * kMiB);
  EXPECT_EQ(attention_workspace(gpt2(1, 65)), 2 * 12 * 128 * 128);
}

TEST(AttentionWorkspaceTest, OfTheFastBackwardGrowsWithTheSequence) {
  EXPECT_EQ(fast_attention_workspace(gpt2(16, 1024)), 4.0 * 16 * 1024 * (768 + 12));
  EXPECT_TRUE(cudnn_has_attention(gpt2(16, 1024), DType::bf16));
  EXPECT_FALSE(cudnn_has_attention(gpt2(16, 1024), DType::fp32));
}

TEST(AttentionWorkspaceTest, TheLimitIsHeldWhereCudnnCanOrItIsEnough) {
  EXPECT_NO_THROW(check_attention_workspace(gpt2(16, 1024), 0, kOrdered));
  EXPECT_NO_THROW(check_attention_workspace(gpt2(16, 1024), 384 * kMiB, {91000, 8}));
}

TEST(AttentionWorkspaceTest, ALimitForAttentionThatIsNotUsedIsRefused) {
  EXPECT_NO_THROW(refuse_unused({}, "no cuDNN"));
  const auto refusal = [](const KernelOptions& options) {
    return zerorun::testing::error_of<ConfigError>([&] { refuse_unused(options, "no cuDNN"); });
  };
  EXPECT_THAT(refusal({.attention_workspace = 0}),
              AllOf(HasSubstr("--attention_workspace"), HasSubstr("no cuDNN")));
  EXPECT_THAT(refusal({.fast_attention = true}),
              AllOf(HasSubstr("--fast_attention"), HasSubstr("no cuDNN")));
}

TEST(AttentionWorkspaceTest, WhereItCannotBeHeldTheErrorSaysWhatWould) {
  for (const CudnnVersion version : {CudnnVersion{92499, 9}, CudnnVersion{92500, 8}}) {
    EXPECT_THAT(
        [&] { check_attention_workspace(gpt2(16, 1024), 384 * kMiB - 1, version); },
        ThrowsMessage<ConfigError>(AllOf(HasSubstr("--attention_workspace"), HasSubstr("384.0 MiB"),
                                         HasSubstr("16 x 1024 positions and 12 heads"),
                                         HasSubstr("smaller micro-batch"))));
  }
}

}  // namespace
}  // namespace zerorun::train::cuda
