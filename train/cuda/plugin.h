#pragma once

#include <memory>

#include "core/build_id.h"
#include "train/model/kernel_options.h"
#include "train/model/kernels.h"
#include "zerorun/device.h"

namespace zerorun::train {

// The kernels of libzerorun_train_cuda.so, a plugin (device/plugin.h).
struct CudaKernelsPlugin {
  BuildId build;
  std::unique_ptr<Kernels> (*make)(Device& device, const KernelOptions& options);
};
inline constexpr const char* kCudaKernelsEntry = "zerorun_train_cuda_kernels";

}  // namespace zerorun::train
