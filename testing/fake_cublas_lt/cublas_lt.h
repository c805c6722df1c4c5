#pragma once

#include "train/cuda/matmul.h"

namespace zerorun::train::testing {

// cuBLASLt in plain loops: computes the product and the epilogue that descriptors ask for, and
// reports what the real library would refuse or punish as violations of FakeCuda: layouts that do
// not fit the operation, pointers that are less aligned than was said, auxiliary rows that are not
// a multiple of eight elements.
cuda::CublasLt fake_cublas_lt();

// The same without kernels for any epilogue.
cuda::CublasLt fake_cublas_lt_without_epilogues();

}  // namespace zerorun::train::testing
