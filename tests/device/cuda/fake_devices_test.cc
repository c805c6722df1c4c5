// The device conformance suite (tests/device/*_conformance_test.cc) on CUDA over fake libraries.

#include "tests/device/conformance.h"
#include "tests/device/cuda/fake_cuda_test.h"

namespace zerorun::testing {

std::vector<DeviceUnderTest> devices_under_test() {
  const auto make = [] { return std::make_shared<CudaDevice>(0, 0); };
  const auto enter = [](int delay) {
    return [=] {
      fake::FakeCuda::instance().reset();
      fake::FakeCuda::instance().set_delay(std::chrono::microseconds(delay));
    };
  };
  return {{"cuda", make, enter(0), expect_clean},
          {"cuda_with_delays", make, enter(200), expect_clean}};
}

}  // namespace zerorun::testing
