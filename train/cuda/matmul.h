#pragma once

#include <cublasLt.h>

#include <array>
#include <compare>
#include <cstddef>
#include <map>
#include <memory>
#include <string>

#include "os/shared_library.h"
#include "zerorun/device.h"
#include "zerorun/tensor.h"

#define ZR_CUBLASLT_FUNCTIONS(X)                          \
  X(create, cublasLtCreate)                               \
  X(destroy, cublasLtDestroy)                             \
  X(desc_create, cublasLtMatmulDescCreate)                \
  X(desc_destroy, cublasLtMatmulDescDestroy)              \
  X(desc_set, cublasLtMatmulDescSetAttribute)             \
  X(layout_create, cublasLtMatrixLayoutCreate)            \
  X(layout_destroy, cublasLtMatrixLayoutDestroy)          \
  X(preference_create, cublasLtMatmulPreferenceCreate)    \
  X(preference_destroy, cublasLtMatmulPreferenceDestroy)  \
  X(preference_set, cublasLtMatmulPreferenceSetAttribute) \
  X(heuristic, cublasLtMatmulAlgoGetHeuristic)            \
  X(matmul, cublasLtMatmul)                               \
  X(version, cublasLtGetVersion)                          \
  X(status_string, cublasLtGetStatusString)

namespace zerorun::train::cuda {

// Device memory that kernels of one stream use one after the other. It grows with the micro-batch
// and the sequence, so it is counted with the activations.
class Workspace {
 public:
  Workspace(Device& device, Stream& stream) : device_(device), stream_(stream) {}

  // At least so many bytes; what was there before is lost.
  void* take(size_t nbytes) {
    if (nbytes > buffer_.nbytes()) {
      stream_.synchronize();  // the memory goes to whoever asks next
      buffer_ = Buffer();
      buffer_ = device_.allocate(nbytes, MemoryCategory::activations);
    }
    return buffer_.data();
  }
  float* floats(int64_t numel) {
    return static_cast<float*>(take(static_cast<size_t>(numel) * sizeof(float)));
  }

 private:
  Device& device_;
  Stream& stream_;
  Buffer buffer_;
};

// The functions of cuBLASLt that are used here.
struct CublasLt {
  ZR_CUBLASLT_FUNCTIONS(ZR_DECLARE_FUNCTION)
};

// d[rows, cols] = op(a)[rows, inner] * op(b)[inner, cols] + c, column-major as cuBLAS has it: a
// row-major matrix is its transpose, with the elements between its rows as `ld`.
struct Product {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t inner = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  int64_t lda = 0;
  int64_t ldb = 0;
  int64_t ldd = 0;  // of c and d
  auto operator<=>(const Product&) const = default;
};

struct ProductTensors {
  TensorView a;
  TensorView b;
  TensorView d;
  TensorView c{};     // empty: zeros; may be d
  TensorView bias{};  // [rows]
  TensorView aux{};   // as d, without gaps
  // What is done before d is stored. BIAS: d += bias. GELU_AUX_BIAS: aux = d + bias; d = gelu(aux).
  // DGELU: d *= gelu'(aux). BGRADA: bias = sums of op(a)'s rows.
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
};

// Matrix products by cuBLASLt, summed in fp32 (fp32 matrices optionally in TF32). Its choice of a
// kernel is kept for each shape, so a step asks once.
class Matmul {
 public:
  Matmul(const CublasLt& lt, bool tf32);
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;
  ~Matmul();

  std::string version() const;  // of cuBLASLt

  // Returns false, having done nothing, when cuBLASLt has no kernel with this epilogue; throws
  // DeviceError when it has none at all.
  [[nodiscard]] bool multiply(cudaStream_t stream, const Product& product,
                              const ProductTensors& tensors, Workspace& workspace);

 private:
  template <typename T>
  using Handle = std::unique_ptr<T, cublasStatus_t (*)(T*)>;
  struct Plan {
    Handle<cublasLtMatmulDescOpaque_t> desc;
    Handle<cublasLtMatrixLayoutOpaque_t> a;
    Handle<cublasLtMatrixLayoutOpaque_t> b;
    Handle<cublasLtMatrixLayoutOpaque_t> d;
    cublasLtMatmulAlgo_t algo{};
    bool found = false;
  };
  struct Key {  // what the choice of a kernel depends on
    Product product;
    std::array<DType, 4> dtypes;        // of a, b, d and bias
    std::array<int64_t, 4> alignments;  // of a, b, d and c; 0: no c
    cublasLtEpilogue_t epilogue;
    bool fits_epilogue;
    auto operator<=>(const Key&) const = default;
  };

  static Key key_of(const Product& product, const ProductTensors& tensors);
  Plan make_plan(const Product& product, const ProductTensors& tensors) const;
  void set_epilogue(const Plan& plan, const Product& product, const ProductTensors& tensors) const;
  void find_algorithm(Plan& plan, const ProductTensors& tensors) const;
  Handle<cublasLtMatrixLayoutOpaque_t> layout(TensorView matrix, int64_t rows, int64_t cols,
                                              int64_t ld) const;
  template <typename Value>
  void set(const Plan& plan, cublasLtMatmulDescAttributes_t attribute, const Value& value) const;
  void check(cublasStatus_t status, const char* what) const;

  const CublasLt lt_;
  const bool tf32_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<Key, Plan> plans_;
};

}  // namespace zerorun::train::cuda
