// Streams that a framework lends to the CUDA device.
#include "tests/device/cuda/fake_cuda_test.h"

namespace zerorun::testing {
namespace {

class LentStreamTest : public LateCudaTest<500> {
 protected:
  void SetUp() override {
    FakeCudaTest::SetUp();
    ASSERT_EQ(cudaStreamCreateWithFlags(lent_.data(), cudaStreamNonBlocking), cudaSuccess);
  }
  void TearDown() override {
    cudaStreamDestroy(lent_[0]);
    FakeCudaTest::TearDown();
  }

  // The handle of the other one, CUDA's default stream, is null. It is PyTorch's, too.
  std::array<cudaStream_t, 2> lent_ = {};
};

TEST_F(LentStreamTest, WorkOnOneComesAfterThatOnTheOneBefore) {
  CudaDevice device(0, 0);
  EXPECT_EQ(device.gpu(), 0);
  const Buffer block = device.allocate(2 * sizeof(float), MemoryCategory::other);
  const TensorView value = view_of(block, DType::fp32, 1);
  const TensorView one = view_of(block, DType::fp32, 1, sizeof(float));
  device.fill(device.inline_stream(), value, 1.0F);  // on a stream of its own
  device.fill(device.inline_stream(), one, 1.0F);
  for (int i = 0; i < 20; ++i) {
    device.use_inline_stream(lent_[static_cast<size_t>(i % 2)]);
    device.scale(device.inline_stream(), value, 2.0F);
    device.add(device.inline_stream(), one, value);  // in another order they give another result
  }
  float found = 0;
  device.download(device.inline_stream(), value, &found);
  device.inline_stream().synchronize();
  EXPECT_EQ(found, static_cast<float>((1U << 21U) - 1));
}

TEST_F(LentStreamTest, TheSameStreamAgainCostsNoCall) {
  CudaDevice device(0, 0);
  for (const cudaStream_t stream : lent_) {
    device.use_inline_stream(stream);
    const auto before = fake_.calls().size();
    device.use_inline_stream(stream);
    EXPECT_EQ(fake_.calls().size(), before);
  }
}

}  // namespace
}  // namespace zerorun::testing
