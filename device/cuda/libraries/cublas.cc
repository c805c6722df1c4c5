#include "device/cuda/libraries/cublas.h"

#include "core/check.h"
#include "device/cuda/runtime/current_device.h"

namespace zerorun {

Cublas::Cublas(int device) : cublas_(open_cublas()), device_(device) {
  check(cublas_.create(&handle_), "cublasCreate");
  const cublasStatus_t status = cublas_.set_math_mode(handle_, CUBLAS_TF32_TENSOR_OP_MATH);
  if (status == CUBLAS_STATUS_SUCCESS) return;
  cublas_.destroy(handle_);  // the destructor does not run
  check(status, "cublasSetMathMode");
}

Cublas::~Cublas() {
  const CurrentDevice current(device_, std::nothrow);
  cublas_.destroy(handle_);
}

// cuBLAS is column-major: it sees the transposes, so it is asked for out' = op(b)' * op(a)'.
void Cublas::multiply(cudaStream_t stream, const MatrixProduct& p) {
  check(cublas_.set_stream(handle_, stream), "cublasSetStream");
  const auto operation = [](bool transpose) { return transpose ? CUBLAS_OP_T : CUBLAS_OP_N; };
  check(cublas_.sgemm(handle_, operation(p.transpose_b), operation(p.transpose_a), p.cols, p.rows,
                      p.inner, &p.alpha, p.b, p.transpose_b ? p.inner : p.cols, p.a,
                      p.transpose_a ? p.rows : p.inner, &p.beta, p.out, p.cols),
        "cublasSgemm");
}

void Cublas::check(cublasStatus_t status, const char* what) const {
  if (status == CUBLAS_STATUS_SUCCESS) [[likely]]
    return;
  fail<DeviceError>("{} failed: {}", what, cublas_.status_string(status));
}

}  // namespace zerorun
