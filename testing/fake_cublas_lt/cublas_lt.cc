#include "testing/fake_cublas_lt/cublas_lt.h"

#include <cmath>
#include <cstring>

#include "testing/fake_cuda/fake_cuda.h"

struct cublasLtContext {};
struct cublasLtMatmulDescOpaque_t {
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  std::map<cublasLtMatmulDescAttributes_t, int64_t> attributes{};

  int64_t get(cublasLtMatmulDescAttributes_t attribute, int64_t otherwise) const {
    const auto found = attributes.find(attribute);
    return found == attributes.end() ? otherwise : found->second;
  }
  void* pointer(cublasLtMatmulDescAttributes_t attribute) const {
    return reinterpret_cast<void*>(get(attribute, 0));
  }
  int64_t epilogue() const { return get(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT); }
};
struct cublasLtMatrixLayoutOpaque_t {
  cudaDataType_t type = CUDA_R_32F;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t ld = 0;
};
struct cublasLtMatmulPreferenceOpaque_t {
  std::map<cublasLtMatmulPreferenceAttributes_t, int64_t> attributes{};
};

namespace {

using zerorun::Bf16;
using zerorun::Fp16;
using zerorun::fake::FakeCuda;

cublasStatus_t violate(const std::string& text) {
  FakeCuda::instance().violate("cuBLASLt: " + text);
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t enter(const char* name, const void* stream = nullptr) {
  return static_cast<cublasStatus_t>(FakeCuda::instance().enter(name, stream));
}

template <typename T>
cublasStatus_t create(const char* name, T** handle, T value) {
  if (const auto planned = enter(name); planned != CUBLAS_STATUS_SUCCESS) return planned;
  *handle = new T(std::move(value));
  FakeCuda::instance().hold("cuBLASLt handles", *handle);
  return CUBLAS_STATUS_SUCCESS;
}

template <typename T>
cublasStatus_t destroy(const char* name, T* handle) {
  const auto planned = enter(name);
  if (!FakeCuda::instance().release("cuBLASLt handles", handle)) return CUBLAS_STATUS_INVALID_VALUE;
  delete handle;
  return planned;
}

// The types that the comments of CUDA 13.1's cublasLt.h give attributes.
size_t nbytes_of(cublasLtMatmulDescAttributes_t attribute) {
  const bool is_wide = attribute == CUBLASLT_MATMUL_DESC_BIAS_POINTER ||
                       attribute == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER ||
                       attribute == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD;
  return is_wide ? sizeof(int64_t) : sizeof(int32_t);
}
size_t nbytes_of(cublasLtMatmulPreferenceAttributes_t attribute) {
  return attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES ? sizeof(uint64_t)
                                                               : sizeof(uint32_t);
}

template <typename Attributes, typename Attribute>
cublasStatus_t set(const char* name, Attributes& attributes, Attribute attribute, const void* value,
                   size_t bytes) {
  if (const auto planned = enter(name); planned != CUBLAS_STATUS_SUCCESS) return planned;
  if (bytes != nbytes_of(attribute)) return violate("an attribute of a wrong size");
  int64_t bits = 0;
  std::memcpy(&bits, value, bytes);
  attributes[attribute] = bits;
  return CUBLAS_STATUS_SUCCESS;
}

float load(cudaDataType_t type, const void* from, int64_t i) {
  if (type == CUDA_R_16BF) return zerorun::to_float(static_cast<const Bf16*>(from)[i]);
  if (type == CUDA_R_16F) return zerorun::to_float(static_cast<const Fp16*>(from)[i]);
  return static_cast<const float*>(from)[i];
}

void store(cudaDataType_t type, float value, void* to, int64_t i) {
  if (type == CUDA_R_16BF) {
    static_cast<Bf16*>(to)[i] = zerorun::to_bf16(value);
  } else if (type == CUDA_R_16F) {
    static_cast<Fp16*>(to)[i] = zerorun::to_fp16(value);
  } else {
    static_cast<float*>(to)[i] = value;
  }
}

float gelu(float x) {
  const double at = x;
  return static_cast<float>(
      0.5 * at * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (at + 0.044715 * at * at * at))));
}

float gelu_slope(float x) {
  const double at = x;
  const double factor = std::sqrt(2.0 / M_PI);
  const double t = std::tanh(factor * (at + 0.044715 * at * at * at));
  return static_cast<float>(0.5 * (1.0 + t) +
                            0.5 * at * (1.0 - t * t) * factor * (1.0 + 3.0 * 0.044715 * at * at));
}

// One product with everything that it needs, by value: it runs later.
struct Work {
  cublasLtMatmulDescOpaque_t desc;
  cublasLtMatrixLayoutOpaque_t a_layout, b_layout, c_layout, d_layout;
  const void* a;
  const void* b;
  const void* c;
  void* d;
  float alpha;
  float beta;

  bool transposed(cublasLtMatmulDescAttributes_t attribute) const {
    return desc.get(attribute, CUBLAS_OP_N) == CUBLAS_OP_T;
  }
  int64_t inner() const {
    return transposed(CUBLASLT_MATMUL_DESC_TRANSA) ? a_layout.rows : a_layout.cols;
  }
  float entry(const void* data, const cublasLtMatrixLayoutOpaque_t& layout, bool transpose,
              int64_t row, int64_t col) const {
    const int64_t at = transpose ? row * layout.ld + col : col * layout.ld + row;
    const float value = load(layout.type, data, at);
    return desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? zerorun::fake::to_tf32(value) : value;
  }

  // Empty, or why the layouts do not fit.
  std::string misfit() const {
    const bool ta = transposed(CUBLASLT_MATMUL_DESC_TRANSA);
    const bool tb = transposed(CUBLASLT_MATMUL_DESC_TRANSB);
    const int64_t k = inner();
    if ((ta ? a_layout.cols : a_layout.rows) != d_layout.rows) return "rows of a and d differ";
    if ((tb ? b_layout.rows : b_layout.cols) != d_layout.cols) return "columns of b and d differ";
    if ((tb ? b_layout.cols : b_layout.rows) != k) return "inner dimensions differ";
    if (c_layout.rows != d_layout.rows || c_layout.cols != d_layout.cols) return "c is not as d";
    for (const auto& layout : {a_layout, b_layout, c_layout, d_layout}) {
      if (layout.ld < layout.rows) return "a leading dimension is less than the rows";
    }
    if (a_layout.type != b_layout.type) return "types of a and b differ";
    const bool same = d_layout.type == a_layout.type || d_layout.type == CUDA_R_32F;
    return same && c_layout.type == d_layout.type ? "" : "d has a type that a and b do not give";
  }

  std::string bad_epilogue() const {
    const int64_t epilogue = desc.epilogue();
    const bool needs_bias = epilogue == CUBLASLT_EPILOGUE_BIAS ||
                            epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
                            epilogue == CUBLASLT_EPILOGUE_BGRADA;
    const bool needs_aux =
        epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS || epilogue == CUBLASLT_EPILOGUE_DGELU;
    const int64_t bias = desc.get(CUBLASLT_MATMUL_DESC_BIAS_POINTER, 0);
    if (needs_bias && (bias == 0 || bias % 16 != 0)) return "no bias, or one that is not aligned";
    if (!needs_aux) return "";
    const void* const aux = desc.pointer(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER);
    const int64_t ld = desc.get(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, 0);
    if (aux == nullptr || ld < d_layout.rows) return "no auxiliary matrix, or rows that overlap";
    const bool aligned = ld % 8 == 0 && reinterpret_cast<uintptr_t>(aux) % 16 == 0;
    return aligned ? "" : "the auxiliary matrix is not aligned";
  }

  float product(int64_t row, int64_t col) const {
    const bool ta = transposed(CUBLASLT_MATMUL_DESC_TRANSA);
    const bool tb = transposed(CUBLASLT_MATMUL_DESC_TRANSB);
    double sum = 0.0;
    for (int64_t i = 0; i < inner(); ++i) {
      sum += double{entry(a, a_layout, ta, row, i)} * entry(b, b_layout, tb, i, col);
    }
    return static_cast<float>(sum);
  }

  void run() const {
    const auto bias_type =
        static_cast<cudaDataType_t>(desc.get(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, d_layout.type));
    void* const bias = desc.pointer(CUBLASLT_MATMUL_DESC_BIAS_POINTER);
    void* const aux = desc.pointer(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER);
    const int64_t aux_ld = desc.get(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, 0);
    const int64_t epilogue = desc.epilogue();
    for (int64_t col = 0; col < d_layout.cols; ++col) {
      for (int64_t row = 0; row < d_layout.rows; ++row) {
        const int64_t at = col * d_layout.ld + row;
        float value = alpha * product(row, col);
        if (beta != 0.0F) value += beta * load(c_layout.type, c, col * c_layout.ld + row);
        if ((epilogue & CUBLASLT_EPILOGUE_BIAS) != 0) value += load(bias_type, bias, row);
        if (epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) {
          store(d_layout.type, value, aux, col * aux_ld + row);
          value = gelu(value);
        }
        if (epilogue == CUBLASLT_EPILOGUE_DGELU) {
          value *= gelu_slope(load(d_layout.type, aux, col * aux_ld + row));
        }
        store(d_layout.type, value, d, at);
      }
    }
    if (epilogue == CUBLASLT_EPILOGUE_BGRADA) sum_rows_of_a(bias_type, bias);
  }

  void sum_rows_of_a(cudaDataType_t type, void* bias) const {
    const bool ta = transposed(CUBLASLT_MATMUL_DESC_TRANSA);
    for (int64_t row = 0; row < d_layout.rows; ++row) {
      double sum = 0.0;
      for (int64_t i = 0; i < inner(); ++i) sum += double{entry(a, a_layout, ta, row, i)};
      store(type, static_cast<float>(sum), bias, row);
    }
  }
};

// The alignments that the heuristic was told, in the order of a, b, c and d.
using Alignments = std::array<int64_t, 4>;

cublasLtMatmulHeuristicResult_t choice_for(const cublasLtMatmulPreferenceOpaque_t& preference) {
  cublasLtMatmulHeuristicResult_t result{};
  Alignments alignments{};
  for (size_t i = 0; i < alignments.size(); ++i) {
    const auto attribute = static_cast<cublasLtMatmulPreferenceAttributes_t>(
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES + static_cast<int>(i));
    const auto found = preference.attributes.find(attribute);
    alignments[i] = found == preference.attributes.end() ? 256 : found->second;  // its default
  }
  std::memcpy(result.algo.data, alignments.data(), sizeof(alignments));
  result.state = CUBLAS_STATUS_SUCCESS;
  return result;
}

}  // namespace

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  return create(__func__, handle, cublasLtContext());
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return destroy(__func__, handle); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (scale != CUDA_R_32F) return violate("alpha and beta are not fp32");
  return create(__func__, desc, cublasLtMatmulDescOpaque_t{compute});
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  return destroy(__func__, desc);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  return set(__func__, desc->attributes, attribute, value, bytes);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type,
                                          uint64_t rows, uint64_t cols, int64_t ld) {
  return create(__func__, layout,
                cublasLtMatrixLayoutOpaque_t{type, static_cast<int64_t>(rows),
                                             static_cast<int64_t>(cols), ld});
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return destroy(__func__, layout);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return create(__func__, preference, cublasLtMatmulPreferenceOpaque_t());
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return destroy(__func__, preference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  return set(__func__, preference->attributes, attribute, value, bytes);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t /*desc*/, cublasLtMatrixLayout_t /*a*/,
    cublasLtMatrixLayout_t /*b*/, cublasLtMatrixLayout_t /*c*/, cublasLtMatrixLayout_t /*d*/,
    cublasLtMatmulPreference_t preference, int requested, cublasLtMatmulHeuristicResult_t* results,
    int* returned) {
  if (const auto planned = enter(__func__); planned != CUBLAS_STATUS_SUCCESS) return planned;
  if (requested < 1) return violate("no algorithm is asked for");
  results[0] = choice_for(*preference);
  *returned = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t desc,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo,
                              void* workspace, size_t workspace_bytes, cudaStream_t stream) {
  if (const auto planned = enter(__func__, stream); planned != CUBLAS_STATUS_SUCCESS) {
    return planned;
  }
  const Work work{*desc,
                  *a_layout,
                  *b_layout,
                  *c_layout,
                  *d_layout,
                  a,
                  b,
                  c,
                  d,
                  *static_cast<const float*>(alpha),
                  *static_cast<const float*>(beta)};
  if (const std::string problem = work.misfit(); !problem.empty()) return violate(problem);
  if (const std::string problem = work.bad_epilogue(); !problem.empty()) return violate(problem);
  Alignments alignments;
  std::memcpy(alignments.data(), algo->data, sizeof(alignments));
  const std::array<const void*, 4> pointers = {a, b, c, d};
  for (size_t i = 0; i < pointers.size(); ++i) {
    if (reinterpret_cast<uintptr_t>(pointers[i]) % static_cast<uintptr_t>(alignments[i]) != 0) {
      return violate("a matrix is less aligned than the heuristic was told");
    }
  }
  if (workspace == nullptr || workspace_bytes == 0) return violate("no workspace");
  zerorun::fake::submit(stream, [work] { work.run(); });
  return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion() { return 130101; }
const char* cublasLtGetStatusString(cublasStatus_t /*status*/) { return "a fake error"; }

namespace zerorun::train::testing {

namespace {

cublasStatus_t heuristic_without_epilogues(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                           cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                           cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                           cublasLtMatmulPreference_t preference, int requested,
                                           cublasLtMatmulHeuristicResult_t* results,
                                           int* returned) {
  if (desc->epilogue() != CUBLASLT_EPILOGUE_DEFAULT) return CUBLAS_STATUS_NOT_SUPPORTED;
  return cublasLtMatmulAlgoGetHeuristic(handle, desc, a, b, c, d, preference, requested, results,
                                        returned);
}

}  // namespace

cuda::CublasLt fake_cublas_lt() { return {ZR_CUBLASLT_FUNCTIONS(ZR_LINKED_FUNCTION)}; }

cuda::CublasLt fake_cublas_lt_without_epilogues() {
  cuda::CublasLt lt = fake_cublas_lt();
  lt.heuristic = heuristic_without_epilogues;
  return lt;
}

}  // namespace zerorun::train::testing
