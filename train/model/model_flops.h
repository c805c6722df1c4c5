#pragma once

#include "train/model/gpt_config.h"
#include "train/model/kernels.h"
#include "zerorun/device.h"

namespace zerorun::train {

// Returns the floating point operations of forward and backward per token: 6 per weight of a matrix
// product, and 12 * layers * width * seq_len for attention (Chowdhery et al. 2022, appendix B).
// Recomputation and skipped parts of masked attention do not change the number.
double flops_per_token(const GptConfig& config, int64_t seq_len);

// Measures the floating point operations per second of large products with weights of `dtype`, with
// the kernels that train. Takes about a fifth of a second.
double measure_peak_flops(Device& device, Kernels& kernels, DType dtype);

}  // namespace zerorun::train
