#include <array>
#include <string>

#include "core/shared_library.h"
#include "device/cuda/cublas.h"

namespace zerorun {

CublasFunctions open_cublas() {
  // The soname of the version that the headers are of; the file that the build found comes last.
  const std::array<std::string, 2> names = {"libcublas.so." + std::to_string(CUBLAS_VER_MAJOR),
                                            ZERORUN_CUBLAS_LIBRARY};
  const SharedLibrary library(names);
  return {
      .create = library.function<decltype(cublasCreate_v2)>("cublasCreate_v2"),
      .destroy = library.function<decltype(cublasDestroy_v2)>("cublasDestroy_v2"),
      .set_stream = library.function<decltype(cublasSetStream_v2)>("cublasSetStream_v2"),
      .sgemm = library.function<decltype(cublasSgemm_v2_64)>("cublasSgemm_v2_64"),
      .status_string = library.function<decltype(cublasGetStatusString)>("cublasGetStatusString"),
  };
}

}  // namespace zerorun
