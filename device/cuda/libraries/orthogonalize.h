#pragma once

#include <cuda_runtime.h>

#include "device/cuda/libraries/cublas.h"
#include "zerorun/device.h"

namespace zerorun::cuda {

struct Matrix {
  TensorView elements;  // row-major
  int64_t rows = 0;
  int64_t cols = 0;
};
struct OrthogonalizeMemory {
  TensorView work;  // as Device::orthogonalize
  TensorView sum;   // words of an ExactSum
};
// Implements Device::orthogonalize with cuBLAS in TF32. The iteration tolerates that: Muon's paper
// uses bf16, which has 7 bits of mantissa instead of 10 and would need a second copy of each
// matrix.
void orthogonalize(Cublas& cublas, cudaStream_t stream, const Matrix& matrix,
                   const Orthogonalization& how, const OrthogonalizeMemory& memory);

}  // namespace zerorun::cuda
