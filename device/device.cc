#include "zerorun/device.h"

#include "config/env.h"
#include "core/check.h"
#include "device/cuda_backend.h"

namespace zerorun {

std::string_view name_of(MemoryCategory category) {
  static constexpr std::array<std::string_view, kMemoryCategories> kNames = {
      "parameters", "gradients", "optimizer", "buckets", "activations",
      "other",      "kept",      "pinned",    "nvme"};
  return kNames.at(static_cast<size_t>(category));
}

void Device::copy(Stream& stream, std::span<const TensorCopy> copies) {
  for (const TensorCopy& one : copies) {
    if (one.accumulate) {
      add(stream, one.src, one.dst);
    } else {
      cast(stream, one.src, one.dst);
    }
  }
}

std::shared_ptr<Device> make_device(Accelerator accelerator) {
  if (accelerator == Accelerator::cuda) return make_cuda_device();
  // Where all GPUs are hidden, the driver is not asked: the launcher hides them if it hangs.
  if (accelerator == Accelerator::automatic && !hides_all_gpus()) {
    if (cuda_is_available()) return make_cuda_device();
    if (const std::string problem = why_driver_fails(); !problem.empty()) {
      fail<DeviceError>("{}; to train on the CPU, set CUDA_VISIBLE_DEVICES to nothing", problem);
    }
  }
  return make_cpu_device();
}

}  // namespace zerorun
