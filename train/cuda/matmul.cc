#include "train/cuda/matmul.h"

#include <utility>

#include "core/check.h"

namespace zerorun::train::cuda {

namespace {

constexpr uint64_t kWorkspace = uint64_t{32} << 20;  // what NVIDIA recommends for Hopper
constexpr int64_t kAlignment = 16;                   // no kernel asks for more
constexpr int64_t kAuxAlignment = 8;                 // elements, of the rows of `aux`

cudaDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::fp32:
      return CUDA_R_32F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::fp16:
      return CUDA_R_16F;
    case DType::int64:
    case DType::uint8:
      break;
  }
  fail<InternalError>("a matrix product of {}", name_of(dtype));
}

int64_t alignment_of(TensorView matrix) {
  const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(matrix.data));
  int64_t alignment = kAlignment;
  while (address % alignment != 0) alignment /= 2;
  return alignment;
}

// True if an epilogue may read and write its bias and its auxiliary matrix. The heuristic takes
// their alignment from the pointers that it sees (cublasLt.h), and its choice serves others of the
// shape.
bool fits_epilogue(const Product& product, const ProductTensors& tensors) {
  return (tensors.aux.empty() || product.rows % kAuxAlignment == 0) &&
         alignment_of(tensors.aux) == kAlignment && alignment_of(tensors.bias) == kAlignment;
}

}  // namespace

Matmul::Matmul(const CublasLt& lt, bool tf32) : lt_(lt), tf32_(tf32) {
  check(lt_.create(&handle_), "cublasLtCreate");
}

Matmul::~Matmul() {
  plans_.clear();
  lt_.destroy(handle_);
}

std::string Matmul::version() const {
  const size_t version = lt_.version();  // 13.1.1 is 130101
  return fmt::format("{}.{}", version / 10000, version / 100 % 100);
}

void Matmul::check(cublasStatus_t status, const char* what) const {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  fail<DeviceError>("{} failed: {}", what, lt_.status_string(status));
}

template <typename Value>
void Matmul::set(const Plan& plan, cublasLtMatmulDescAttributes_t attribute,
                 const Value& value) const {
  check(lt_.desc_set(plan.desc.get(), attribute, &value, sizeof(value)),
        "cublasLtMatmulDescSetAttribute");
}

Matmul::Handle<cublasLtMatrixLayoutOpaque_t> Matmul::layout(TensorView matrix, int64_t rows,
                                                            int64_t cols, int64_t ld) const {
  cublasLtMatrixLayout_t result = nullptr;
  check(lt_.layout_create(&result, type_of(matrix.dtype), static_cast<uint64_t>(rows),
                          static_cast<uint64_t>(cols), ld),
        "cublasLtMatrixLayoutCreate");
  return {result, lt_.layout_destroy};
}

Matmul::Key Matmul::key_of(const Product& product, const ProductTensors& tensors) {
  const auto& [a, b, d, c, bias, aux, epilogue] = tensors;
  return {product,
          {a.dtype, b.dtype, d.dtype, bias.dtype},
          {alignment_of(a), alignment_of(b), alignment_of(d), c.empty() ? 0 : alignment_of(c)},
          epilogue,
          fits_epilogue(product, tensors)};
}

Matmul::Plan Matmul::make_plan(const Product& product, const ProductTensors& tensors) const {
  const bool wide = tensors.a.dtype == DType::fp32;
  cublasLtMatmulDesc_t desc = nullptr;
  check(lt_.desc_create(&desc, wide && tf32_ ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                        CUDA_R_32F),
        "cublasLtMatmulDescCreate");
  const auto [a_rows, a_cols] = product.transpose_a ? std::pair(product.inner, product.rows)
                                                    : std::pair(product.rows, product.inner);
  const auto [b_rows, b_cols] = product.transpose_b ? std::pair(product.cols, product.inner)
                                                    : std::pair(product.inner, product.cols);
  Plan plan{{desc, lt_.desc_destroy},
            layout(tensors.a, a_rows, a_cols, product.lda),
            layout(tensors.b, b_rows, b_cols, product.ldb),
            layout(tensors.d, product.rows, product.cols, product.ldd)};
  const auto operation = [](bool transpose) { return transpose ? CUBLAS_OP_T : CUBLAS_OP_N; };
  set(plan, CUBLASLT_MATMUL_DESC_TRANSA, operation(product.transpose_a));
  set(plan, CUBLASLT_MATMUL_DESC_TRANSB, operation(product.transpose_b));
  set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE, tensors.epilogue);
  set_epilogue(plan, product, tensors);
  if (fits_epilogue(product, tensors)) find_algorithm(plan, tensors);
  return plan;
}

void Matmul::set_epilogue(const Plan& plan, const Product& product,
                          const ProductTensors& tensors) const {
  if (!tensors.bias.empty()) {
    set(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<void*>(tensors.bias.data));
    set(plan, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(tensors.bias.dtype));
  }
  if (!tensors.aux.empty()) {
    set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, static_cast<void*>(tensors.aux.data));
    set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, product.rows);
  }
}

void Matmul::find_algorithm(Plan& plan, const ProductTensors& tensors) const {
  cublasLtMatmulPreference_t preference = nullptr;
  check(lt_.preference_create(&preference), "cublasLtMatmulPreferenceCreate");
  const Handle<cublasLtMatmulPreferenceOpaque_t> owner(preference, lt_.preference_destroy);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    check(lt_.preference_set(preference, attribute, &value, sizeof(value)),
          "cublasLtMatmulPreferenceSetAttribute");
  };
  const TensorView c = tensors.c.empty() ? tensors.d : tensors.c;
  const auto bytes = [](TensorView view) { return static_cast<uint32_t>(alignment_of(view)); };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspace);
  // Parts of a sum are added in fp32, never in 16 bits.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, bytes(tensors.a));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, bytes(tensors.b));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, bytes(c));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, bytes(tensors.d));
  cublasLtMatmulHeuristicResult_t result{};
  int count = 0;
  const cublasStatus_t status =
      lt_.heuristic(handle_, plan.desc.get(), plan.a.get(), plan.b.get(), plan.d.get(),
                    plan.d.get(), preference, 1, &result, &count);
  // With an epilogue it also says that of what it calls invalid: then that is done afterwards.
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return;
  if (status != CUBLAS_STATUS_SUCCESS && tensors.epilogue != CUBLASLT_EPILOGUE_DEFAULT) return;
  check(status, "cublasLtMatmulAlgoGetHeuristic");
  plan.found = count > 0 && result.state == CUBLAS_STATUS_SUCCESS;
  plan.algo = result.algo;
}

bool Matmul::multiply(cudaStream_t stream, const Product& product, const ProductTensors& tensors,
                      Workspace& workspace) {
  const Key key = key_of(product, tensors);
  auto at = plans_.find(key);
  if (at == plans_.end()) at = plans_.emplace(key, make_plan(product, tensors)).first;
  const Plan& plan = at->second;
  if (!plan.found && tensors.epilogue != CUBLASLT_EPILOGUE_DEFAULT) return false;
  if (!plan.found) {
    fail<DeviceError>(
        "cuBLASLt {} has no kernel for a product of [{}, {}] and [{}, {}] of {} and {} into {}",
        version(), product.rows, product.inner, product.inner, product.cols,
        name_of(tensors.a.dtype), name_of(tensors.b.dtype), name_of(tensors.d.dtype));
  }
  set_epilogue(plan, product, tensors);
  const float alpha = 1.0F;
  const float beta = tensors.c.empty() ? 0.0F : 1.0F;
  const TensorView c = tensors.c.empty() ? tensors.d : tensors.c;
  check(lt_.matmul(handle_, plan.desc.get(), &alpha, tensors.a.data, plan.a.get(), tensors.b.data,
                   plan.b.get(), &beta, c.data, plan.d.get(), tensors.d.data, plan.d.get(),
                   &plan.algo, workspace.take(kWorkspace), kWorkspace, stream),
        "cublasLtMatmul");
  return true;
}

}  // namespace zerorun::train::cuda
