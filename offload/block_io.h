#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "zerorun/config.h"

namespace zerorun {

// Addresses, sizes and offsets of direct I/O are multiples of it.
inline constexpr size_t kDirectAlignment = 4096;

constexpr size_t align_direct(size_t nbytes) {
  return (nbytes + kDirectAlignment - 1) / kDirectAlignment * kDirectAlignment;
}

enum class Transfer : uint8_t { read, write };

// A part of a file and where it goes to, or comes from; all multiples of kDirectAlignment.
struct Block {
  std::byte* data = nullptr;
  size_t nbytes = 0;
  uint64_t offset = 0;
};

// Moves blocks between memory and one file, several at a time. For one thread.
class BlockIo {
 public:
  virtual ~BlockIo() = default;
  // Blocks until all are transferred. Calls visit(i) after block i was read, or before it is
  // written, while others are on their way; perhaps on several threads at once. Throws IoError
  // naming file, offset and cause, with no transfer left running.
  using Visit = std::function<void(size_t)>;
  virtual void transfer(Transfer direction, std::span<const Block> blocks, const Visit& visit) = 0;
  virtual std::string_view name() const = 0;
};

// The file of the descriptor, which outlives the result, and its name in messages.
struct OpenFile {
  int fd = -1;
  std::string path;
};

// io_uring where the kernel lets this process use it, else threads. Blocks lie within one of
// `memory`, which io_uring keeps mapped for its lifetime where the limit of locked memory allows.
std::unique_ptr<BlockIo> make_block_io(const OpenFile& file, const AioConfig& config,
                                       std::span<const std::span<std::byte>> memory);
// pread and pwrite on `threads` threads.
std::unique_ptr<BlockIo> make_thread_io(const OpenFile& file, int threads);
// Null where the kernel refuses io_uring, or the build is without it.
std::unique_ptr<BlockIo> make_uring_io(const OpenFile& file, int queue_depth,
                                       std::span<const std::span<std::byte>> memory);

// Bytes per second of transferring the first `nbytes` of a file once, in blocks of `block` bytes
// from and to `memory`, which is at least one block.
double transfer_rate(BlockIo& io, Transfer direction, std::span<std::byte> memory, size_t block,
                     uint64_t nbytes);

// The IoError of a transfer that failed with `error` (errno), or ended early when that is 0.
[[noreturn]] void fail_transfer(const OpenFile& file, Transfer direction, uint64_t offset,
                                size_t nbytes, int error);

}  // namespace zerorun
