#include "tests/device/conformance.h"

namespace zerorun::testing {

std::vector<DeviceUnderTest> devices_under_test() {
  return {{"cuda", [] { return make_cuda_device(); }}};
}

}  // namespace zerorun::testing
