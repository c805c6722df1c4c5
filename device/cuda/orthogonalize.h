#pragma once

#include "device/cuda/cublas.h"
#include "device/cuda/cuda_memory.h"
#include "zerorun/tensor.h"

namespace zerorun::cuda {

// Device::orthogonalize, with cuBLAS.
void orthogonalize(CudaPool& pool, Cublas& cublas, const CudaStream& stream, TensorView matrix,
                   int64_t rows, int64_t cols, int steps, TensorView work);

}  // namespace zerorun::cuda
