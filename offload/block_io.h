#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "os/open_file.h"
#include "zerorun/config.h"

namespace zerorun {

enum class Direction : uint8_t { read, write };

// A part of a file and the memory that it is read into or written from. All values are multiples of
// kDirectAlignment.
struct Block {
  std::byte* data = nullptr;
  size_t nbytes = 0;
  uint64_t offset = 0;
};

// Transfers blocks between memory and one file, several at a time. Used by one thread.
class BlockIo {
 public:
  virtual ~BlockIo() = default;
  // Transfers all blocks and waits for them. Calls visit(i) after block i was read, or before it is
  // written, while others are being transferred; several threads may call it at once. Throws
  // IoError that names file, offset and cause; no transfer is then in progress.
  using Visit = std::function<void(size_t)>;
  virtual void transfer(Direction direction, std::span<const Block> blocks, const Visit& visit) = 0;
  virtual std::string_view name() const = 0;
};

// An open file. The descriptor has to outlive the BlockIo made for it; `path` is its name in
// errors.
struct OpenFile {
  int fd = -1;
  std::string path;
};

// Makes a BlockIo that uses io_uring if the kernel allows it, else threads. Blocks have to be
// within one of the regions of `memory`, which io_uring registers for its lifetime if the limit of
// locked memory allows.
std::unique_ptr<BlockIo> make_block_io(const OpenFile& file, const AioConfig& config,
                                       std::span<const std::span<std::byte>> memory);
// Makes a BlockIo that uses pread and pwrite on `threads` threads.
std::unique_ptr<BlockIo> make_thread_io(const OpenFile& file, int threads);
// Makes a BlockIo that uses io_uring. Null if the kernel does not allow it or the build does not
// include it.
std::unique_ptr<BlockIo> make_uring_io(const OpenFile& file, int queue_depth,
                                       std::span<const std::span<std::byte>> memory);

// Measures bytes per second: transfers the first `nbytes` bytes of a file once, in blocks of
// `block` bytes, from or to `memory`, which is at least one block.
double transfer_rate(BlockIo& io, Direction direction, std::span<std::byte> memory, size_t block,
                     uint64_t nbytes);

// Throws the IoError of a transfer that failed with `error` (errno), or that ended early if `error`
// is 0.
[[noreturn]] void fail_transfer(const OpenFile& file, Direction direction, uint64_t offset,
                                size_t nbytes, int error);

}  // namespace zerorun
