#pragma once

#include <span>

#include "zerorun/device.h"

// Checks of arguments that all devices share. Each function checks the arguments of the Device
// function with the same name, and throws InternalError for dtypes and sizes that zerorun/device.h
// does not allow.
namespace zerorun {

void check_cast(TensorView src, TensorView dst);
void check_add(TensorView src, TensorView dst);
void check_trust_ratios(TensorView sums, TensorView ratios);
void check_scale(TensorView dst);
void check_copy(std::span<const TensorCopy> copies);
void check_decide(const StepEvidence& evidence, TensorView decision);
void check_sum_of_squares(TensorView src, std::span<const SquaresSegment> segments,
                          TensorView sums);
void check_update(const UpdateTensors& tensors, std::span<const UpdateSegment> segments);
void check_quantize(TensorView src, TensorView dst, const Quantization& how);
void check_dequantize(TensorView src, TensorView dst, const Dequantization& how);
void check_orthogonalize(TensorView matrix, int64_t rows, int64_t cols, TensorView work);

}  // namespace zerorun
