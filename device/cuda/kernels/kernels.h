#pragma once

#include <span>

#include "device/cuda/runtime/cuda_stream.h"
#include "zerorun/device.h"
#include "zerorun/tensor.h"

// The kernels of the CUDA device. Each function launches one on a stream, or several if the
// parameters of one do not hold the list it is given, and has the contract of the Device function
// with the same name. The caller has checked dtypes and sizes and made the stream's device current.
namespace zerorun::cuda {

void fill(cudaStream_t stream, TensorView dst, float value);
void cast(cudaStream_t stream, TensorView src, TensorView dst);
// Also of int64.
void add(cudaStream_t stream, TensorView src, TensorView dst);
// One launch takes about a hundred copies (device/cuda/kernels/segments.h).
void copy(cudaStream_t stream, std::span<const TensorCopy> copies);
// dst[i] = the larger, or the smaller, of src[i] and dst[i]; fp32 and int64.
void extreme(cudaStream_t stream, TensorView src, TensorView dst, bool larger);
void scale(cudaStream_t stream, TensorView dst, float factor);
// dst[i] /= sqrt(sum) + kNewtonSchulzEps, with the ExactSum words of sum_of_squares.
void normalize(cudaStream_t stream, TensorView dst, TensorView sum);
// One launch takes as many segments as fit into 4 KB (device/cuda/kernels/segments.h).
void sum_of_squares(cudaStream_t stream, TensorView src, std::span<const SquaresSegment> segments,
                    TensorView sums);
void decide(cudaStream_t stream, const StepEvidence& evidence, const StepRule& rule,
            TensorView decision);
void trust_ratios(cudaStream_t stream, TensorView sums, const TrustRatioLimits& limits,
                  TensorView ratios);
void quantize(cudaStream_t stream, TensorView src, TensorView dst, const Quantization& how);
void dequantize(cudaStream_t stream, TensorView src, TensorView dst, const Dequantization& how);
void update(cudaStream_t stream, const UpdateTensors& tensors,
            std::span<const UpdateSegment> segments);

}  // namespace zerorun::cuda
