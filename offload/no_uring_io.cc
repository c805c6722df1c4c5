#include "offload/block_io.h"

namespace zerorun {

std::unique_ptr<BlockIo> make_uring_io(const OpenFile& /*file*/, int /*queue_depth*/,
                                       std::span<const std::span<std::byte>> /*memory*/) {
  return nullptr;
}

}  // namespace zerorun
