#pragma once

#include <cublas_v2.h>

#include <cstdint>

#include "os/shared_library.h"

#define ZR_CUBLAS_FUNCTIONS(X)        \
  X(create, cublasCreate_v2)          \
  X(destroy, cublasDestroy_v2)        \
  X(set_stream, cublasSetStream_v2)   \
  X(set_math_mode, cublasSetMathMode) \
  X(sgemm, cublasSgemm_v2_64)         \
  X(status_string, cublasGetStatusString)

namespace zerorun {

// Functions of cuBLAS, from the copy that the process has already loaded, or that the loader finds.
struct CublasFunctions {
  ZR_CUBLAS_FUNCTIONS(ZR_DECLARE_FUNCTION)
};
// Throws DeviceError if there is no cuBLAS.
CublasFunctions open_cublas();

// A matrix product: out = alpha * op(a) * op(b) + beta * out, row-major fp32, out [rows, cols]. The
// tensor cores round a and b to TF32 (10 bits of mantissa) and add in fp32.
struct MatrixProduct {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t inner = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  const float* a = nullptr;
  const float* b = nullptr;
  float* out = nullptr;
  float alpha = 1.0F;
  float beta = 0.0F;
};

// cuBLAS on the device, which is current when this is called. For one thread at a time.
class Cublas {
 public:
  explicit Cublas(int device);
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;
  ~Cublas();

  void multiply(cudaStream_t stream, const MatrixProduct& product);

 private:
  void check(cublasStatus_t status, const char* what) const;

  const CublasFunctions cublas_;
  const int device_;
  cublasHandle_t handle_ = nullptr;
};

}  // namespace zerorun
