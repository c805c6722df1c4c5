// Everything that kernels and models do (tests/train/*_conformance.h), with train's CUDA kernels on
// a fake of CUDA and cuBLASLt: the kernels run as C++, products in the plain loops of the fake.

#include "device/cuda/cuda_device.h"
#include "testing/fake_cublas_lt/cublas_lt.h"
#include "testing/fake_cuda/fake_cuda.h"
#include "tests/common.h"
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
