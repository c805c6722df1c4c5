

#include "device/cuda/cuda_device.h"
#include "tests/common.h"
#include "tests/device/cuda/fake_cuda_test.h"

namespace zerorun {
namespace {

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
  Stream& stream = device.inline_stream();
  device.upload(stream, values.data(), view);
  device.orthogonalize(stream, view, kRows, kCols, {.steps = 5},
                       view_of(scratch, DType::fp32, work));
  device.download(stream, view, values.data());
  stream.synchronize();
  return values;
}

class OrthogonalizeTest : public testing::FakeCudaTest {};

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
}  // namespace zerorun
