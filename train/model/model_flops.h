#pragma once

#include "train/model/gpt_config.h"
#include "train/model/kernels.h"
#include "zerorun/device.h"

namespace zerorun::train {

// Floating point operations of a token's forward and backward: 6 for each weight of a product with
// a matrix, and 12 * layers * width * seq_len of attention (Chowdhery et al. 2022, appendix B).
// Recomputation and skipped parts of masked attention do not change the number.
double flops_per_token(const GptConfig& config, int64_t seq_len);

// Floating point operations per second of large products with weights of `dtype`, by the kernels
// that train: measured, in about a fifth of a second.
double measure_peak_flops(Device& device, Kernels& kernels, DType dtype);

}  // namespace zerorun::train
