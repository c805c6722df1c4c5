#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <string>

#include "train/cuda/attention_workspace.h"
#include "train/cuda/workspace.h"
#include "train/model/kernels.h"

namespace zerorun::train::cuda {

// Causal attention in 16 bits by cuDNN's fused kernels; see Kernels. log_sum is laid out as
// attention.h has it.
class CudnnAttention {
 public:
  virtual ~CudnnAttention() = default;

  virtual std::string version() const = 0;
  // Both return false, having done nothing, for shapes and dtypes that cuDNN has no kernel for.
  [[nodiscard]] virtual bool forward(cudaStream_t stream, const AttentionShape& shape,
                                     TensorView qkv, TensorView log_sum, TensorView out,
                                     Workspace& workspace) = 0;
  [[nodiscard]] virtual bool backward(cudaStream_t stream, const AttentionShape& shape,
                                      const AttentionState& state, TensorView dout, TensorView dqkv,
                                      Workspace& workspace) = 0;
};

// cuDNN, if the build had its headers and this machine has the library; else null, and `why` says
// what is missing. Backward takes at most options.workspace bytes for gradients of probabilities,
// where that is set, or throws ConfigError (attention_workspace.h).
std::unique_ptr<CudnnAttention> open_cudnn_attention(const AttentionOptions& options,
                                                     std::string& why);

}  // namespace zerorun::train::cuda
