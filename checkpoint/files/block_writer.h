#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <span>

#include "checkpoint/files/file.h"
#include "device/cpu/cpu_stream.h"
#include "os/file_descriptor.h"

namespace zerorun {

// Writes a new file in large blocks: a long one on threads of its own, several at a time, while the
// caller makes the next. Blocks go past the system's cache where the file system lets them: what is
// written is not read again soon, and copying it there takes longer than a fast disk.
class BlockWriter {
 public:
  // Creates the file, of `nbytes`. `direct` false: through the cache.
  BlockWriter(const std::filesystem::path& path, uint64_t nbytes, bool direct = true);
  BlockWriter(const BlockWriter&) = delete;
  BlockWriter& operator=(const BlockWriter&) = delete;

  const std::filesystem::path& path() const { return file_.path(); }
  // Between two multiples of it lies a block.
  static constexpr size_t kBlockNbytes = size_t{4} << 20;

  // Copies the bytes. Best in the order of the file. Throws IoError, also of blocks before.
  void write(uint64_t offset, std::span<const std::byte> bytes);
  // The same for bytes that stay as they are until flush() or finish() returns: those of whole
  // pages are not copied where their addresses suit the disk. What follows them in the file and in
  // memory joins them.
  void write_in_place(uint64_t offset, std::span<const std::byte> bytes);
  // Returns when bytes that were given in place are the caller's again.
  void flush();
  // Returns when all is on the disk.
  void finish();

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  // The memory of a block, and the thread that writes it.
  struct Slot {
    std::unique_ptr<std::byte, Free> memory;
    std::unique_ptr<CpuStream> thread;
  };
  static constexpr size_t kSlots = 4;

  void copy(uint64_t offset, std::span<const std::byte> bytes);
  std::byte* memory_of_block();
  void submit();
  bool takes_in_place(const std::byte* data) const;
  void end_run();
  // Writes them on the next thread, or now.
  void start(uint64_t offset, std::span<const std::byte> bytes);
  void wait();
  void write_block(uint64_t offset, std::span<const std::byte> bytes);
  bool write_direct(uint64_t offset, std::span<const std::byte> bytes);

  File file_;
  FileDescriptor direct_;
  const bool has_threads_;
  std::atomic<bool> is_direct_;
  std::atomic<bool> is_in_place_ = true;  // directly, from memory that begins within a page
  std::span<const std::byte> run_;        // given in place, and not started
  uint64_t run_begin_ = 0;                // in the file: a page's
  uint64_t begin_ = 0;                    // of the current copied block, in the file
  size_t filled_ = 0;
  size_t slot_ = 0;
  std::array<Slot, kSlots> slots_;  // last: its threads use the others
};

}  // namespace zerorun
