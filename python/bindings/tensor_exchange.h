#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <string>

#include "zerorun/tensor.h"

namespace zerorun {

// Memory crosses between the core and Python's tensor libraries without a copy, and without this
// module knowing any of them: outwards as DLPack capsules, inwards by address.

// A flat DLPack capsule of `view`. `owner` lives until the last tensor made from it is gone.
pybind11::capsule export_view(TensorView view, std::shared_ptr<void> owner);

// The memory of a torch tensor (anything with data_ptr, numel, dtype and is_contiguous), which the
// caller keeps alive. Throws ConfigError naming `what` when it is not dense, contiguous and on the
// host, or of a dtype that DType lacks.
TensorView import_tensor(pybind11::handle tensor, const std::string& what);

}  // namespace zerorun
