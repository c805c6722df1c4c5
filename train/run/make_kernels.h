#pragma once

#include <memory>

#include "train/model/kernel_options.h"
#include "train/model/kernels.h"
#include "zerorun/device.h"

namespace zerorun::train {

// The kernels of the device, which must outlive them. Throws ConfigError for options that would
// change nothing, DeviceError when the library with the CUDA kernels or one that it needs is
// missing.
std::unique_ptr<Kernels> make_kernels(Device& device, const KernelOptions& options);

}  // namespace zerorun::train
