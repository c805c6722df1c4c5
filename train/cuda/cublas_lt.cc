#include "train/cuda/cublas_lt.h"

#include "device/cuda/libraries/library_files.h"
#include "os/shared_library.h"

namespace zerorun::train::cuda {

CublasLt open_cublas_lt() {
  const SharedLibrary library(library_files_of_cuda("cublasLt", ZERORUN_CUBLASLT_LIBRARY));
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
