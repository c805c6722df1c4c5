#include "checkpoint/files/block_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "offload/block_io.h"

namespace zerorun {

namespace {

// A block lies between two multiples of it.
constexpr size_t kWriteNbytes = size_t{4} << 20;
static_assert(kWriteNbytes % kDirectAlignment == 0);

}  // namespace

BlockWriter::BlockWriter(const std::filesystem::path& path, uint64_t nbytes, bool direct)
    : file_(File::create(path)) {
  file_.reserve(nbytes);
  if (direct) direct_ = FileDescriptor(::open(path.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC));
  is_direct_ = static_cast<bool>(direct_);
}

std::byte* BlockWriter::memory_of_block() {
  Slot& slot = slots_[slot_];
  if (!slot.memory) {
    slot.memory.reset(static_cast<std::byte*>(std::aligned_alloc(kDirectAlignment, kWriteNbytes)));
    if (!slot.memory) throw std::bad_alloc();
  }
  return slot.memory.get() + begin_ % kWriteNbytes;
}

void BlockWriter::write(uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (offset != begin_ + filled_) submit();
    if (filled_ == 0) begin_ = offset;
    const auto part = bytes.first(std::min(bytes.size(), kWriteNbytes - offset % kWriteNbytes));
    std::memcpy(memory_of_block() + filled_, part.data(), part.size());
    filled_ += part.size();
    offset += part.size();
    bytes = bytes.subspan(part.size());
    if (offset % kWriteNbytes == 0) submit();
  }
}

void BlockWriter::submit() {
  if (filled_ == 0) return;
  Slot& slot = slots_[slot_];
  if (!slot.thread) slot.thread = make_worker_stream("zerorun-save");
  slot.thread->submit([this, offset = begin_, bytes = std::span(memory_of_block(), filled_)] {
    write_block(offset, bytes);
  });
  begin_ += filled_;
  filled_ = 0;
  slot_ = (slot_ + 1) % kSlots;
  if (slots_[slot_].thread) slots_[slot_].thread->synchronize();  // its memory is free again
}

void BlockWriter::finish() {
  if (filled_ > 0) write_block(begin_, {memory_of_block(), filled_});
  filled_ = 0;
  for (const Slot& slot : slots_) {
    if (slot.thread) slot.thread->synchronize();
  }
  file_.sync();
}

// Whole pages of the disk directly; what others share a page with through the cache. No page gets
// bytes both ways.
void BlockWriter::write_block(uint64_t offset, std::span<const std::byte> bytes) {
  const size_t head = std::min<size_t>(align_direct(offset) - offset, bytes.size());
  const size_t whole = (bytes.size() - head) / kDirectAlignment * kDirectAlignment;
  if (!is_direct_ || !write_direct(offset + head, bytes.subspan(head, whole))) {
    is_direct_ = false;
    file_.write(offset, bytes);
    file_.start_sync(offset, bytes.size());
    return;
  }
  file_.write(offset, bytes.first(head));
  file_.write(offset + head + whole, bytes.subspan(head + whole));
}

// False where the file system does not write like this, or has no more room: what writes through
// the cache says which.
bool BlockWriter::write_direct(uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count =
        ::pwrite(direct_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(count));
    offset += static_cast<uint64_t>(count);
  }
  return true;
}

}  // namespace zerorun
