// The device conformance suite (tests/device/*_conformance_test.cc) on the CUDA device, with fake
// CUDA libraries below it.

#include "device/cuda/cuda_device.h"
#include "testing/fake_cuda/fake_cuda.h"
#include "tests/common.h"
#include "tests/device/conformance.h"

namespace zerorun::testing {

namespace {

using fake::FakeCuda;

void expect_clean() {
  EXPECT_EQ(FakeCuda::instance().violations(), std::vector<std::string>());
  EXPECT_EQ(FakeCuda::instance().leaks(), std::vector<std::string>());
}

}  // namespace

std::vector<DeviceUnderTest> devices_under_test() {
  const auto make = [] { return std::make_shared<CudaDevice>(0, 0); };
  return {{"cuda", make, [] { FakeCuda::instance().reset(); }, expect_clean},
          {"cuda_with_delays", make,
           [] {
             FakeCuda::instance().reset();
             FakeCuda::instance().set_delay(std::chrono::microseconds(200));
           },
           expect_clean}};
}

}  // namespace zerorun::testing
