#include "train/cuda/attention_workspace.h"

#include "core/check.h"
#include "core/format_bytes.h"

namespace zerorun::train::cuda {

namespace {

// From cudnn_frontend/node/scaled_dot_product_flash_attention.h.
constexpr int64_t kQueryTile = 64;
constexpr int64_t kKeyTile = 128;
constexpr int64_t kFirstOrdered = 92500;  // version with a backward that takes no such workspace,
constexpr int kOrderedArchitecture = 9;   // and what it is for

int64_t round_up(int64_t value, int64_t tile) { return (value + tile - 1) / tile * tile; }

}  // namespace

int64_t attention_workspace(const AttentionShape& shape) {
  return 2 * shape.batch * shape.heads * round_up(shape.seq_len, kQueryTile) *
         round_up(shape.seq_len, kKeyTile);
}

void refuse_unused_workspace(std::optional<int64_t> most, std::string_view why) {
  if (!most) return;
  fail<ConfigError>(
      "--attention_workspace limits cuDNN's attention, which is not used here: {}; leave it out",
      why);
}

void check_attention_workspace(const AttentionShape& shape, int64_t most,
                               const CudnnVersion& version) {
  const int64_t needed = attention_workspace(shape);
  const bool has_other_way =
      version.number >= kFirstOrdered && version.architecture == kOrderedArchitecture;
  if (needed <= most || has_other_way) return;
  fail<ConfigError>(
      "--attention_workspace: attention's backward takes {} for {} x {} positions and {} heads, "
      "but "
      "{} are allowed; less needs cuDNN 9.25 and a GPU of compute capability 9 (here: {}.{} and "
      "{}). "
      "Allow more, or use a smaller micro-batch or sequence",
      format_bytes(static_cast<size_t>(needed)), shape.batch, shape.seq_len, shape.heads,
      format_bytes(static_cast<size_t>(most)), version.number / 10000, version.number / 100 % 100,
      version.architecture);
}

}  // namespace zerorun::train::cuda
