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

// Writes a new file in large blocks on threads of its own, several at a time, while the caller
// makes the next. Blocks go past the system's cache where the file system lets them: what is
// written is not read again soon, and copying it there takes longer than a fast disk.
class BlockWriter {
 public:
  // Creates the file, of `nbytes`. `direct` false: through the cache.
  BlockWriter(const std::filesystem::path& path, uint64_t nbytes, bool direct = true);
  BlockWriter(const BlockWriter&) = delete;
  BlockWriter& operator=(const BlockWriter&) = delete;

  const std::filesystem::path& path() const { return file_.path(); }
  // Copies the bytes. Best in the order of the file. Throws IoError, also of blocks before.
  void write(uint64_t offset, std::span<const std::byte> bytes);
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

  std::byte* memory_of_block();
  void submit();
  void write_block(uint64_t offset, std::span<const std::byte> bytes);
  bool write_direct(uint64_t offset, std::span<const std::byte> bytes);

  File file_;
  FileDescriptor direct_;
  std::atomic<bool> is_direct_;
  uint64_t begin_ = 0;  // of the current block, in the file
  size_t filled_ = 0;
  size_t slot_ = 0;
  std::array<Slot, kSlots> slots_;  // last: its threads use the others
};

}  // namespace zerorun
