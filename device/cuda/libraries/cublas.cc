#include "device/cuda/libraries/cublas.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "device/cuda/kernels/kernels.h"
#include "device/cuda/runtime/cuda_error.h"
#include "device/cuda/runtime/current_device.h"
#include "device/newton_schulz.h"

namespace zerorun {

namespace {

void copy(cudaStream_t stream, const float* from, float* to, int64_t count) {
  check_cuda(cudaMemcpyAsync(to, from, static_cast<size_t>(count) * sizeof(float),
                             cudaMemcpyDeviceToDevice, stream),
             "cudaMemcpyAsync on the device");
}

}  // namespace

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

void Cublas::open() {
  if (handle_ != nullptr) return;
  cublas_ = open_cublas();
  cublasHandle_t handle = nullptr;
  check(cublas_.create(&handle), "cublasCreate");
  const cublasStatus_t status = cublas_.set_math_mode(handle, CUBLAS_TF32_TENSOR_OP_MATH);
  if (status != CUBLAS_STATUS_SUCCESS) cublas_.destroy(handle);
  check(status, "cublasSetMathMode");
  handle_ = handle;
}

Cublas::~Cublas() {
  if (handle_ == nullptr) return;
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

void Cublas::orthogonalize(cudaStream_t stream, const Matrix& matrix, const Orthogonalization& how,
                           const OrthogonalizeMemory& memory) {
  const std::lock_guard lock(mutex_);
  open();
  const auto [elements, rows, cols] = matrix;
  cuda::fill(stream, memory.sum, 0.0F);
  const SquaresSegment all{.numel = elements.numel};
  cuda::sum_of_squares(stream, elements, {&all, 1}, memory.sum);
  cuda::normalize(stream, elements, memory.sum);

  // The square A belongs to the shorter side: XX' from the left, or X'X from the right.
  const bool tall = rows > cols;
  const int64_t side = std::min(rows, cols);
  float* x = elements.as<float>();
  float* next = memory.work.as<float>();
  float* const gram = next + rows * cols;
  float* const polynomial = gram + side * side;
  for (int step = 0; step < how.steps; ++step) {
    const NewtonSchulzStep k = newton_schulz_step(how, step);
    multiply(stream, {.rows = side,
                      .cols = side,
                      .inner = std::max(rows, cols),
                      .transpose_a = tall,
                      .transpose_b = !tall,
                      .a = x,
                      .b = x,
                      .out = gram});
    copy(stream, gram, polynomial, side * side);
    multiply(stream, {.rows = side,
                      .cols = side,
                      .inner = side,
                      .a = gram,
                      .b = gram,
                      .out = polynomial,
                      .alpha = k.c,
                      .beta = k.b});
    copy(stream, x, next, rows * cols);
    multiply(stream, {.rows = rows,
                      .cols = cols,
                      .inner = side,
                      .a = tall ? x : polynomial,
                      .b = tall ? polynomial : x,
                      .out = next,
                      .beta = k.a});
    std::swap(x, next);
  }
  if (x != elements.as<float>()) copy(stream, x, elements.as<float>(), rows * cols);
}

}  // namespace zerorun
