// Takes the place of cudnn_attention.cc in a build without headers of cuDNN.
#include "train/cuda/cudnn_attention.h"

namespace zerorun::train::cuda {

std::unique_ptr<CudnnAttention> open_cudnn_attention(const AttentionOptions& /*options*/,
                                                     std::string& why) {
  why = "this build has no cuDNN";
  return nullptr;
}

}  // namespace zerorun::train::cuda
