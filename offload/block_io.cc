#include "offload/block_io.h"

#include <algorithm>
#include <system_error>

#include "core/check.h"

namespace zerorun {

void fail_transfer(const OpenFile& file, Transfer direction, uint64_t offset, size_t nbytes,
                   int error) {
  fail<IoError>("{}: cannot {} {} bytes at offset {}: {}", file.path,
                direction == Transfer::read ? "read" : "write", nbytes, offset,
                error == 0 ? "the file ends before" : std::generic_category().message(error));
}

std::unique_ptr<BlockIo> make_block_io(const OpenFile& file, const AioConfig& config,
                                       std::span<const std::span<std::byte>> memory) {
  if (auto uring = make_uring_io(file, static_cast<int>(config.queue_depth), memory)) return uring;
  return make_thread_io(file, static_cast<int>(std::max(config.queue_depth, config.threads)));
}

}  // namespace zerorun
