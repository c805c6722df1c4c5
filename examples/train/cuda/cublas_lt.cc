#include "examples/train/cuda/cublas_lt.h"

#include <array>
#include <string>

#include "core/shared_library.h"

namespace zerorun::train::cuda {

CublasLt open_cublas_lt() {
  // The soname of the version that the headers are of.
  const std::array<std::string, 2> names = {"libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR),
                                            ZERORUN_CUBLASLT_LIBRARY};
  const SharedLibrary library(names);
  CublasLt lt;
  const auto find = [&](auto*& function, const char* name) {
    function =
        library.function<std::remove_pointer_t<std::remove_reference_t<decltype(function)>>>(name);
  };
  find(lt.create, "cublasLtCreate");
  find(lt.destroy, "cublasLtDestroy");
  find(lt.desc_create, "cublasLtMatmulDescCreate");
  find(lt.desc_destroy, "cublasLtMatmulDescDestroy");
  find(lt.desc_set, "cublasLtMatmulDescSetAttribute");
  find(lt.layout_create, "cublasLtMatrixLayoutCreate");
  find(lt.layout_destroy, "cublasLtMatrixLayoutDestroy");
  find(lt.preference_create, "cublasLtMatmulPreferenceCreate");
  find(lt.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  find(lt.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  find(lt.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  find(lt.matmul, "cublasLtMatmul");
  find(lt.version, "cublasLtGetVersion");
  find(lt.status_string, "cublasLtGetStatusString");
  return lt;
}

}  // namespace zerorun::train::cuda
