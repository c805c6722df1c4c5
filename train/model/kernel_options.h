#pragma once

#include <cstdint>
#include <optional>

#include "zerorun/dtype.h"

namespace zerorun::train {

struct KernelOptions {
  DType dtype = DType::fp32;  // dtype of parameters and gradients
  bool tf32 = false;          // compute fp32 products in TF32; CUDA only
  // Maximum bytes that cuDNN may use for gradients of attention's probabilities; unset: no limit.
  // CUDA and 16 bits only.
  std::optional<int64_t> attention_workspace{};
  // cuDNN may add up gradients of queries in any order, so that two runs differ in their last bits.
  // CUDA and 16 bits only.
  bool fast_attention = false;
  // Whether GELU with its derivative, and gradients of biases, are computed with the matrix product
  // next to them or by kernels of their own. Results differ in their last bits. CUDA only.
  bool gelu_epilogue = true;
  bool bias_gradient_epilogue = true;
};

}  // namespace zerorun::train
