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

// Writes a new file in large blocks. A long file is written by several threads, while the caller
// prepares the next block. If the file system supports it, blocks bypass the page cache: the data
// are not read again soon, and copying them there takes longer than a fast disk.
class BlockWriter {
 public:
  // Creates the file, of `nbytes` bytes. `direct`: bypass the page cache.
  BlockWriter(const std::filesystem::path& path, uint64_t nbytes, bool direct = true);
  BlockWriter(const BlockWriter&) = delete;
  BlockWriter& operator=(const BlockWriter&) = delete;

  const std::filesystem::path& path() const { return file_.path(); }
  // Blocks begin at multiples of this.
  static constexpr size_t kBlockNbytes = size_t{4} << 20;

  // Copies the bytes and writes them. Fastest in the order of the file. Throws IoError, also for
  // earlier blocks.
  void write(uint64_t offset, std::span<const std::byte> bytes);
  // As write(), for bytes that do not change until flush() or finish() returns. Whole pages among
  // them are not copied if their addresses are suitably aligned. Consecutive calls whose bytes are
  // adjacent both in the file and in memory are joined.
  void write_in_place(uint64_t offset, std::span<const std::byte> bytes);
  // Waits until bytes of write_in_place() may change again.
  void flush();
  // Waits until the whole file is on the disk.
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
  // Writes the bytes on the next thread, or on this one.
  void start(uint64_t offset, std::span<const std::byte> bytes);
  void wait();
  void write_block(uint64_t offset, std::span<const std::byte> bytes);

  File file_;
  FileDescriptor direct_;
  const bool has_threads_;
  std::atomic<bool> is_direct_;
  std::atomic<bool> is_in_place_ = true;  // unaligned memory can be written directly
  std::span<const std::byte> run_;        // of write_in_place(), not yet started
  uint64_t run_begin_ = 0;                // its begin in the file, a multiple of a page
  uint64_t begin_ = 0;                    // begin of the current copied block in the file
  size_t filled_ = 0;
  size_t slot_ = 0;
  std::array<Slot, kSlots> slots_;  // declared last: its threads use the others
};

}  // namespace zerorun
