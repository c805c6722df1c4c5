// What libzerorun_train_cuda.so shows: CudaKernelsPlugin of train/model/kernels.h.
#include <cuda_runtime.h>

#include <memory>
#include <string>
#include <utility>

#include "device/cuda/libraries/library_files.h"
#include "os/shared_library.h"
#include "train/cuda/cuda_kernels.h"

namespace zerorun::train {

namespace cuda {

#ifdef ZERORUN_NO_CUDNN
std::unique_ptr<CudnnAttention> open_cudnn_attention(const KernelOptions& /*options*/,
                                                     std::string& why) {
  why = "this build has no cuDNN";
  return nullptr;
}
#endif

namespace {

// Opens the copy that the process already has (PyTorch brings its own), else the one that the
// loader finds, else the one of the build. Throws DeviceError when there is none.
CublasLt open_cublas_lt() {
  const SharedLibrary library(library_files_of_cuda("cublasLt", ZERORUN_CUBLASLT_LIBRARY));
  return {ZR_CUBLASLT_FUNCTIONS(ZR_FIND_FUNCTION)};
}

std::unique_ptr<Kernels> make(Device& device, const KernelOptions& options) {
  if (device.gpu()) cudaSetDevice(*device.gpu());  // which cuDNN's handle is made for
  std::string why_no_cudnn;
  auto attention = open_cudnn_attention(options, why_no_cudnn);
  if (!attention) refuse_unused(options, why_no_cudnn);
  return make_cuda_kernels(device, options, open_cublas_lt(),
                           {std::move(attention), std::move(why_no_cudnn)});
}

}  // namespace

}  // namespace cuda

extern "C" __attribute__((visibility("default"))) const CudaKernelsPlugin*
zerorun_train_cuda_kernels() {
  static const CudaKernelsPlugin plugin = {build_id(), cuda::make};
  return &plugin;
}

}  // namespace zerorun::train
