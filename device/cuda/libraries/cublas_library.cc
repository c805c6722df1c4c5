#include "device/cuda/libraries/cublas.h"
#include "device/cuda/libraries/library_files.h"
#include "os/shared_library.h"

namespace zerorun {

std::vector<std::string> cublas_files() {
  return library_files_of_cuda("cublas", ZERORUN_CUBLAS_LIBRARY);
}

CublasFunctions open_cublas() {
  const SharedLibrary library(cublas_files());
  return {
      .create = library.function<decltype(cublasCreate_v2)>("cublasCreate_v2"),
      .destroy = library.function<decltype(cublasDestroy_v2)>("cublasDestroy_v2"),
      .set_stream = library.function<decltype(cublasSetStream_v2)>("cublasSetStream_v2"),
      .set_math_mode = library.function<decltype(cublasSetMathMode)>("cublasSetMathMode"),
      .sgemm = library.function<decltype(cublasSgemm_v2_64)>("cublasSgemm_v2_64"),
      .status_string = library.function<decltype(cublasGetStatusString)>("cublasGetStatusString"),
  };
}

}  // namespace zerorun
