// The symbols that libzerorun_train_cuda.so shows: see train/cuda/plugin.h.
#include <cuda_runtime.h>

#include <memory>
#include <string>
#include <utility>

#include "train/cuda/attention_workspace.h"
#include "train/cuda/cuda_kernels.h"
#include "train/cuda/plugin.h"

namespace zerorun::train {

namespace {

std::unique_ptr<Kernels> make_kernels_of_cuda(Device& device, const KernelOptions& options) {
  using namespace cuda;                            // NOLINT: one function
  if (device.gpu()) cudaSetDevice(*device.gpu());  // which cuDNN's handle is made for
  std::string why_no_cudnn;
  const AttentionOptions how{options.attention_workspace, options.fast_attention};
  auto attention = open_cudnn_attention(how, why_no_cudnn);
  if (!attention) refuse_unused(how, why_no_cudnn);
  return std::make_unique<CudaKernels>(
      device, options, open_cublas_lt(),
      FusedAttention{std::move(attention), std::move(why_no_cudnn)});
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const CudaKernelsPlugin*
zerorun_train_cuda_kernels() {
  static const CudaKernelsPlugin plugin = {build_id(), make_kernels_of_cuda};
  return &plugin;
}

}  // namespace zerorun::train
