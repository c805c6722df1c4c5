#include <hwy/targets.h>

#include "tests/device/conformance.h"

namespace zerorun::testing {

namespace {

void choose_instruction_set(int64_t target) {
  hwy::SetSupportedTargetsForTest(target);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace

// The CPU device counts once for each instruction set of this machine.
std::vector<DeviceUnderTest> devices_under_test() {
  std::vector<DeviceUnderTest> devices;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    devices.push_back(
        {std::string("cpu_") + hwy::TargetName(target), [] { return make_cpu_device(); },
         [target] { choose_instruction_set(target); }, [] { choose_instruction_set(0); }});
  }
  devices.push_back(
      {"cpu_synchronous", [] { return make_cpu_device({.synchronous_streams = true}); }});
  return devices;
}

}  // namespace zerorun::testing
