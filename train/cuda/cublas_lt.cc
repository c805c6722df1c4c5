#include "train/cuda/cublas_lt.h"

#include <array>
#include <string>

#include "os/shared_library.h"

namespace zerorun::train::cuda {

CublasLt open_cublas_lt() {
  // The soname of the version that the headers are of.
  const std::array<std::string, 2> names = {"libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR),
                                            ZERORUN_CUBLASLT_LIBRARY};
  const SharedLibrary library(names);
  CublasLt lt;
  library.find(lt.create, "cublasLtCreate");
  library.find(lt.destroy, "cublasLtDestroy");
  library.find(lt.desc_create, "cublasLtMatmulDescCreate");
  library.find(lt.desc_destroy, "cublasLtMatmulDescDestroy");
  library.find(lt.desc_set, "cublasLtMatmulDescSetAttribute");
  library.find(lt.layout_create, "cublasLtMatrixLayoutCreate");
  library.find(lt.layout_destroy, "cublasLtMatrixLayoutDestroy");
  library.find(lt.preference_create, "cublasLtMatmulPreferenceCreate");
  library.find(lt.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  library.find(lt.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  library.find(lt.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  library.find(lt.matmul, "cublasLtMatmul");
  library.find(lt.version, "cublasLtGetVersion");
  library.find(lt.status_string, "cublasLtGetStatusString");
  return lt;
}

}  // namespace zerorun::train::cuda
