#pragma once

#include <span>

#include "zerorun/device.h"
#include "zerorun/tensor.h"

// The arithmetic of the CPU device. The functions do what the Device functions with the same name
// specify, on the caller's thread and those of core/parallel.h. The device has already checked
// dtypes and sizes.
namespace zerorun::kernels {

// Minimum number of elements per thread: with fewer, another thread costs more than it saves. A
// multiple of kNormBlock.
inline constexpr int64_t kGrain = 32768;

void fill(TensorView dst, float value);
void cast(TensorView src, TensorView dst);
void add(TensorView src, TensorView dst);
void scale(TensorView dst, float factor);
void sum_of_squares(TensorView src, std::span<const SquaresSegment> segments, TensorView sums);
void quantize(TensorView src, TensorView dst, const Quantization& how);
void dequantize(TensorView src, TensorView dst, const Dequantization& how);
void update(const UpdateTensors& tensors, std::span<const UpdateSegment> segments);
void orthogonalize(TensorView matrix, int64_t rows, int64_t cols, const Orthogonalization& how,
                   TensorView work);

}  // namespace zerorun::kernels
