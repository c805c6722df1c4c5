// Streams that a framework lends to the CUDA device, and tensor cores.
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

constexpr int64_t kRows = 24;
constexpr int64_t kCols = 40;

std::vector<float> orthogonalized(Device& device) {
  std::vector<float> values;
  for (int64_t i = 0; i < kRows * kCols; ++i) {
    values.push_back(std::sin(static_cast<float>(i * i % 1009)));
  }
  const auto bytes = [](int64_t numel) { return static_cast<size_t>(numel) * sizeof(float); };
  const int64_t work = orthogonalize_work(kRows, kCols);
  const Buffer matrix = device.allocate(bytes(kRows * kCols), MemoryCategory::other);
  const Buffer scratch = device.allocate(bytes(work), MemoryCategory::other);
  const TensorView view = view_of(matrix, DType::fp32, kRows * kCols);
  device.use_inline_stream(nullptr);  // CUDA's default stream
  Stream& stream = device.inline_stream();
  device.upload(stream, values.data(), view);
  device.orthogonalize(stream, view, kRows, kCols, {.steps = 5},
                       view_of(scratch, DType::fp32, work));
  device.download(stream, view, values.data());
  stream.synchronize();
  return values;
}

class OrthogonalizeTest : public FakeCudaTest {};

// Products in fp32, without tensor cores, would be several times slower. The fake rounds to TF32
// where it is allowed to.
TEST_F(OrthogonalizeTest, ProductsMayUseTensorCores) {
  CudaDevice device(0, 0);
  const std::vector<float> found = orthogonalized(device);
  const std::vector<float> in_fp32 = orthogonalized(*make_cpu_device());
  float difference = 0.0F;
  for (size_t i = 0; i < found.size(); ++i) {
    difference = std::max(difference, std::abs(found[i] - in_fp32[i]));
  }
  EXPECT_GT(difference, 1e-4F);
  EXPECT_LT(difference, 1e-2F);
}

}  // namespace
}  // namespace zerorun::testing
