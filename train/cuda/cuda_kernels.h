#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "train/cuda/matmul.h"
#include "train/model/kernels.h"

namespace zerorun::train::cuda {

// The facts on which cuDNN's deterministic backward of attention depends.
struct CudnnVersion {
  int64_t number = 0;    // as cuDNN gives it: 92800 is 9.28.0
  int architecture = 0;  // of the GPU: 9 is Hopper
};

// Throws ConfigError, which names the option, when one of cuDNN's attention is set although that is
// not used, and says why not.
void refuse_unused(const KernelOptions& options, std::string_view why);

// Throws ConfigError, which names --attention_workspace, when the deterministic backward of `shape`
// takes more than `most` bytes for them and this cuDNN has no way without.
void check_attention_workspace(const AttentionShape& shape, int64_t most,
                               const CudnnVersion& version);

// What a warning says of a cuDNN that has no attention for `shape`, and what to do. `is_ordered`:
// it is the deterministic backward that it has not.
std::string lacks_attention(const AttentionShape& shape, bool is_ordered, std::string_view why);

// Causal attention in 16 bits by cuDNN's fused kernels; see Kernels. log_sum is laid out as
// kernels.h has it.
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
// what is missing. Backward takes at most options.attention_workspace bytes for gradients of
// probabilities, where that is set, or throws ConfigError (check_attention_workspace).
std::unique_ptr<CudnnAttention> open_cudnn_attention(const KernelOptions& options,
                                                     std::string& why);

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
