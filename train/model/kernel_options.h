#pragma once

#include <cstdint>
#include <optional>

#include "zerorun/dtype.h"

namespace zerorun::train {

struct KernelOptions {
  DType dtype = DType::fp32;  // of parameters and gradients
  bool tf32 = false;          // fp32 products in TF32: CUDA only
  // Bytes that cuDNN may take for gradients of attention's probabilities; unset: what it likes.
  // CUDA only, 16 bits only.
  std::optional<int64_t> attention_workspace{};
};

}  // namespace zerorun::train
