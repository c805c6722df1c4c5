// What libzerorun_train_cuda.so shows: see train/make_kernels.h.
#include <cuda_runtime.h>

#include <string>
#include <utility>

#include "train/cuda/attention_workspace.h"
#include "train/cuda/cuda_kernels.h"
#include "train/make_kernels.h"

extern "C" __attribute__((visibility("default"))) zerorun::train::Kernels*
zerorun_train_make_cuda_kernels(zerorun::Device& device,
                                const zerorun::train::KernelOptions& options) {
  using namespace zerorun::train::cuda;            // NOLINT: one function
  if (device.gpu()) cudaSetDevice(*device.gpu());  // which cuDNN's handle is made for
  std::string why_no_cudnn;
  auto attention = open_cudnn_attention(options.attention_workspace, why_no_cudnn);
  if (!attention) refuse_unused_workspace(options.attention_workspace, why_no_cudnn);
  return new CudaKernels(device, options.dtype, open_cublas_lt(), options.tf32,
                         {std::move(attention), std::move(why_no_cudnn)});
}
