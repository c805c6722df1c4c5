// Takes the place of nvml.cc where the build has no nvml.h.
#include "core/check.h"
#include "device/cuda/libraries/nvml.h"

namespace zerorun {

std::unique_ptr<Nvml> open_nvml() {
  fail<DeviceError>("this build has no nvml.h; it comes with pip's nvidia-nvml-dev");
}

}  // namespace zerorun
