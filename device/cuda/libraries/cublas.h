#pragma once

#include <cublas_v2.h>

#include <cstdint>
#include <mutex>

#include "os/shared_library.h"
#include "zerorun/device.h"

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

struct Matrix {
  TensorView elements;  // row-major
  int64_t rows = 0;
  int64_t cols = 0;
};
struct OrthogonalizeMemory {
  TensorView work;  // as Device::orthogonalize
  TensorView sum;   // words of an ExactSum
};

struct MatrixProduct;

// cuBLAS on a device, opened at its first use. Safe to use from several threads.
class Cublas {
 public:
  explicit Cublas(int device) : device_(device) {}
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;
  ~Cublas();

  // Implements Device::orthogonalize in TF32, on the device, which is current. The iteration
  // tolerates that: Muon's paper uses bf16, which has 7 bits of mantissa instead of 10 and would
  // need a second copy of each matrix.
  void orthogonalize(cudaStream_t stream, const Matrix& matrix, const Orthogonalization& how,
                     const OrthogonalizeMemory& memory);

 private:
  void open();
  void multiply(cudaStream_t stream, const MatrixProduct& product);
  void check(cublasStatus_t status, const char* what) const;

  const int device_;
  std::mutex mutex_;  // guards the next
  CublasFunctions cublas_;
  cublasHandle_t handle_ = nullptr;
};

}  // namespace zerorun
