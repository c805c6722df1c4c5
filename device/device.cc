#include "zerorun/device.h"

namespace zerorun {

std::string_view name_of(MemoryCategory category) {
  switch (category) {
    case MemoryCategory::parameters:
      return "parameters";
    case MemoryCategory::gradients:
      return "gradients";
    case MemoryCategory::optimizer:
      return "optimizer";
    case MemoryCategory::buckets:
      return "buckets";
    case MemoryCategory::activations:
      return "activations";
    case MemoryCategory::other:
      return "other";
    case MemoryCategory::kept:
      return "kept";
    case MemoryCategory::pinned:
      return "pinned";
    case MemoryCategory::nvme:
      return "nvme";
  }
  return "?";
}

std::shared_ptr<Device> make_device(Accelerator accelerator) {
  const bool cuda = accelerator == Accelerator::cuda ||
                    (accelerator == Accelerator::automatic && cuda_is_available());
  return cuda ? make_cuda_device() : make_cpu_device();
}

}  // namespace zerorun
