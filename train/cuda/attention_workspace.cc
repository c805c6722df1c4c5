#include "train/cuda/attention_workspace.h"

#include "core/check.h"
#include "core/format_bytes.h"
#include "train/model/attention_workspace.h"

namespace zerorun::train::cuda {

namespace {

constexpr int64_t kFirstOrdered = 92500;  // version with a backward that takes no such workspace,
constexpr int kOrderedArchitecture = 9;   // and what it is for

}  // namespace

void refuse_unused(const AttentionOptions& options, std::string_view why) {
  if (options.workspace) {
    fail<ConfigError>(
        "--attention_workspace limits cuDNN's attention, which is not used here: {}; leave it out",
        why);
  }
  if (options.fast) {
    fail<ConfigError>("--fast_attention is cuDNN's, which is not used here: {}; leave it out", why);
  }
}

void check_attention_workspace(const AttentionShape& shape, int64_t most,
                               const CudnnVersion& version) {
  const double needed = attention_workspace(shape);
  const bool has_other_way =
      version.number >= kFirstOrdered && version.architecture == kOrderedArchitecture;
  if (needed <= static_cast<double>(most) || has_other_way) return;
  fail<ConfigError>(
      "--attention_workspace: attention's backward takes {} for {} x {} positions and {} heads, "
      "but "
      "{} are allowed; less needs cuDNN 9.25 and a GPU of compute capability 9 (here: {}.{} and "
      "{}). "
      "Allow more, use a smaller micro-batch or sequence, or --fast_attention",
      format_bytes(static_cast<size_t>(needed)), shape.batch, shape.seq_len, shape.heads,
      format_bytes(static_cast<size_t>(most)), version.number / 10000, version.number / 100 % 100,
      version.architecture);
}

}  // namespace zerorun::train::cuda
