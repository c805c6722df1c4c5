#pragma once

#include <cublas_v2.h>

#include <cstdint>
#include <string>
#include <vector>

namespace zerorun {

// Functions of cuBLAS, from the copy that the process has already loaded, or that the loader finds.
struct CublasFunctions {
  decltype(&cublasCreate_v2) create = nullptr;
  decltype(&cublasDestroy_v2) destroy = nullptr;
  decltype(&cublasSetStream_v2) set_stream = nullptr;
  decltype(&cublasSetMathMode) set_math_mode = nullptr;
  decltype(&cublasSgemm_v2_64) sgemm = nullptr;
  decltype(&cublasGetStatusString) status_string = nullptr;
};
// Throws DeviceError if there is no cuBLAS.
CublasFunctions open_cublas();
// Returns its file names, for SharedLibrary.
std::vector<std::string> cublas_files();

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
