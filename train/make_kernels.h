#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "core/build_id.h"
#include "train/kernels.h"
#include "zerorun/device.h"

namespace zerorun::train {

struct KernelOptions {
  DType dtype = DType::fp32;  // of parameters and gradients
  bool tf32 = false;          // fp32 products in TF32: CUDA only
  // Bytes that cuDNN may take for gradients of attention's probabilities; unset: what it likes.
  // CUDA only, 16 bits only.
  std::optional<int64_t> attention_workspace{};
};

// The kernels of the device, which must outlive them. Throws ConfigError for options that would
// change nothing, DeviceError when the library with the CUDA kernels or one that it needs is
// missing.
std::unique_ptr<Kernels> make_kernels(Device& device, const KernelOptions& options);

// The kernels of libzerorun_train_cuda.so, a plugin (device/plugin.h).
struct CudaKernelsPlugin {
  BuildId build;
  std::unique_ptr<Kernels> (*make)(Device& device, const KernelOptions& options);
};
inline constexpr const char* kCudaKernelsEntry = "zerorun_train_cuda_kernels";

}  // namespace zerorun::train
