#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "train/model/kernels.h"

namespace zerorun::train::cuda {

// The facts on which cuDNN's deterministic backward of attention depends.
struct CudnnVersion {
  int64_t number = 0;    // as cuDNN gives it: 92800 is 9.28.0
  int architecture = 0;  // of the GPU: 9 is Hopper
};

// How cuDNN's backward of attention adds up; see KernelOptions.
struct AttentionOptions {
  std::optional<int64_t> workspace;
  bool fast = false;
};

// Throws ConfigError, which names the option, when one is set although cuDNN's attention is not
// used, and says why not.
void refuse_unused(const AttentionOptions& options, std::string_view why);

// Throws ConfigError, which names --attention_workspace, when the deterministic backward of `shape`
// takes more than `most` bytes for them and this cuDNN has no way without.
void check_attention_workspace(const AttentionShape& shape, int64_t most,
                               const CudnnVersion& version);

}  // namespace zerorun::train::cuda
