#include "offload/block_io.h"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <vector>

#include "core/check.h"

namespace zerorun {

void fail_transfer(const OpenFile& file, Direction direction, uint64_t offset, size_t nbytes,
                   int error) {
  fail<IoError>("{}: cannot {} {} bytes at offset {}: {}", file.path,
                direction == Direction::read ? "read" : "write", nbytes, offset,
                error == 0 ? "the file ends before" : std::generic_category().message(error));
}

double transfer_rate(BlockIo& io, Direction direction, std::span<std::byte> memory, size_t block,
                     uint64_t nbytes) {
  std::vector<Block> blocks;
  for (uint64_t at = 0; at + block <= nbytes; at += block) {
    blocks.push_back({memory.data() + at % (memory.size() / block * block), block, at});
  }
  const auto start = std::chrono::steady_clock::now();
  io.transfer(direction, blocks, [](size_t) {});
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  return static_cast<double>(blocks.size() * block) / taken.count();
}

std::unique_ptr<BlockIo> make_block_io(const OpenFile& file, const AioConfig& config,
                                       std::span<const std::span<std::byte>> memory) {
  if (auto uring = make_uring_io(file, static_cast<int>(config.queue_depth), memory)) return uring;
  return make_thread_io(file, static_cast<int>(std::max(config.queue_depth, config.threads)));
}

}  // namespace zerorun
