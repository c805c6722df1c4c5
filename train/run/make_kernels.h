#pragma once

#include <memory>

#include "train/model/kernels.h"
#include "zerorun/device.h"

namespace zerorun::train {

// Creates the kernels for a device, which must outlive them. Throws ConfigError for options that
// would have no effect on this device, and DeviceError if the library of the CUDA kernels or one
// that it needs is missing.
std::unique_ptr<Kernels> make_kernels(Device& device, const KernelOptions& options);

}  // namespace zerorun::train
