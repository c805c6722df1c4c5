#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>

#include "train/cuda/cublas_lt.h"
#include "train/cuda/workspace.h"
#include "zerorun/tensor.h"

namespace zerorun::train::cuda {

// An operation on a product before it is stored.
enum class Epilogue : uint8_t {
  none,
  bias,           // d += bias
  bias_gelu,      // aux = d + bias; d = gelu(aux)
  gelu_gradient,  // d *= gelu'(aux)
  bias_gradient,  // besides: bias = sums of op(a)'s rows
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
};

struct ProductTensors {
  TensorView a;
  TensorView b;
  TensorView d;
  TensorView c{};     // empty: zeros; may be d
  TensorView bias{};  // [rows]
  TensorView aux{};   // as d, without gaps
  Epilogue epilogue = Epilogue::none;
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
  using Key = std::array<int64_t, 18>;

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
