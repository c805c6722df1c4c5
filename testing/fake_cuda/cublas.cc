// Column-major products in plain loops, summed in double, of inputs that are rounded to TF32 where
// the handle allows it (the real library may). The source of each function is its section of
// cuBLAS's documentation, 13.0.
#include "device/cuda/libraries/cublas.h"

#include "device/cuda/libraries/library_files.h"
#include "testing/fake_cuda/runtime_call.h"

struct cublasContext {
  cudaStream_t stream = nullptr;
  cublasMath_t mode = CUBLAS_DEFAULT_MATH;
  int device = zerorun::fake::current_device;
};

namespace {

using zerorun::fake::FakeCuda;

cublasStatus_t enter(const char* name, const void* stream = nullptr) {
  return static_cast<cublasStatus_t>(FakeCuda::instance().enter(name, stream));
}

void check_device(cublasHandle_t handle) {
  if (handle->device == zerorun::fake::current_device) return;
  FakeCuda::instance().violate("cuBLAS is called with another device than its handle's");
}

}  // namespace

// The handle belongs to the current device.
cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  if (const auto planned = enter(__func__); planned != CUBLAS_STATUS_SUCCESS) return planned;
  *handle = new cublasContext;
  FakeCuda::instance().hold("cuBLAS handles", *handle);
  return CUBLAS_STATUS_SUCCESS;
}

// May wait for the device, on which it was made.
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  const auto planned = enter(__func__);
  if (!FakeCuda::instance().release("cuBLAS handles", handle)) return CUBLAS_STATUS_INVALID_VALUE;
  check_device(handle);
  delete handle;
  return planned;
}

// For later calls with the handle.
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  if (const auto planned = enter(__func__, stream); planned != CUBLAS_STATUS_SUCCESS) {
    return planned;
  }
  handle->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}

// For later calls; CUBLAS_TF32_TENSOR_OP_MATH allows TF32, and does not promise it.
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  if (const auto planned = enter(__func__); planned != CUBLAS_STATUS_SUCCESS) return planned;
  handle->mode = mode;
  return CUBLAS_STATUS_SUCCESS;
}

// Enqueued when it returns, with alpha and beta of the host as they are then; refuses leading
// dimensions that are too small.
cublasStatus_t cublasSgemm_v2_64(cublasHandle_t handle, cublasOperation_t transa,
                                 cublasOperation_t transb, int64_t m, int64_t n, int64_t k,
                                 const float* alpha, const float* a, int64_t lda, const float* b,
                                 int64_t ldb, const float* beta, float* c, int64_t ldc) {
  if (const auto planned = enter(__func__, handle->stream); planned != CUBLAS_STATUS_SUCCESS) {
    return planned;
  }
  check_device(handle);
  const bool a_is_transposed = transa == CUBLAS_OP_T;
  const bool b_is_transposed = transb == CUBLAS_OP_T;
  if (lda < (a_is_transposed ? k : m) || ldb < (b_is_transposed ? n : k) || ldc < m) {
    FakeCuda::instance().violate("cublasSgemm: a leading dimension is too small");
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const bool in_tf32 = handle->mode == CUBLAS_TF32_TENSOR_OP_MATH;
  const auto input = [in_tf32](float value) {
    return in_tf32 ? zerorun::fake::to_tf32(value) : value;
  };
  zerorun::fake::submit(handle->stream, [=, x = *alpha, y = *beta] {
    for (int64_t col = 0; col < n; ++col) {
      for (int64_t row = 0; row < m; ++row) {
        double sum = 0.0;
        for (int64_t i = 0; i < k; ++i) {
          sum += static_cast<double>(input(a_is_transposed ? a[row * lda + i] : a[i * lda + row])) *
                 input(b_is_transposed ? b[i * ldb + col] : b[col * ldb + i]);
        }
        float& out = c[col * ldc + row];
        out = static_cast<float>(x * sum) + (y == 0.0F ? 0.0F : y * out);
      }
    }
  });
  return CUBLAS_STATUS_SUCCESS;
}

const char* cublasGetStatusString(cublasStatus_t /*status*/) { return "a fake error"; }

namespace zerorun {

// In the place of device/cuda/libraries/library_report.cc.
CublasFunctions open_cublas() { return {ZR_CUBLAS_FUNCTIONS(ZR_LINKED_FUNCTION)}; }
std::vector<std::string> describe_libraries_of_cuda() { return {"cuBLAS 0.0.0 (fake)"}; }

}  // namespace zerorun
