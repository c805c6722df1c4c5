#pragma once

#include <memory>
#include <string>

#include "train/cuda/cudnn_attention.h"
#include "train/cuda/matmul.h"
#include "train/model/kernels.h"

namespace zerorun::train::cuda {

// cuDNN's attention, or why plain kernels take its place.
struct FusedAttention {
  std::unique_ptr<CudnnAttention> cudnn;
  std::string why_not;
};

// Kernels on a GPU, on one thread. Activations, and so the residual stream, have the parameters'
// dtype; products are cuBLASLt's with biases, GELU and their gradients in its epilogues, attention
// is cuDNN's where it can be, and the rest are the kernels of this folder. The device must outlive
// them.
std::unique_ptr<Kernels> make_cuda_kernels(Device& device, const KernelOptions& options,
                                           const CublasLt& lt, FusedAttention attention);

}  // namespace zerorun::train::cuda
