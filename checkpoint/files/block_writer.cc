#include "checkpoint/files/block_writer.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "os/open_file.h"

namespace zerorun {

namespace {

static_assert(BlockWriter::kBlockNbytes % kDirectAlignment == 0);

constexpr size_t kMinInPlace = size_t{64} << 10;  // less costs more to start than to copy

}  // namespace

BlockWriter::BlockWriter(const std::filesystem::path& path, uint64_t nbytes, bool direct)
    : file_(File::create(path)), has_threads_(nbytes > 2 * kBlockNbytes) {
  file_.reserve(nbytes);
  if (direct) direct_ = FileDescriptor(::open(path.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC));
  is_direct_ = static_cast<bool>(direct_);
}

std::byte* BlockWriter::memory_of_block() {
  Slot& slot = slots_[slot_];
  if (!slot.memory) {
    slot.memory.reset(static_cast<std::byte*>(std::aligned_alloc(kDirectAlignment, kBlockNbytes)));
    if (!slot.memory) throw std::bad_alloc();
  }
  return slot.memory.get() + begin_ % kBlockNbytes;
}

void BlockWriter::write(uint64_t offset, std::span<const std::byte> bytes) {
  end_run();
  copy(offset, bytes);
}

void BlockWriter::copy(uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (offset != begin_ + filled_) submit();
    if (filled_ == 0) begin_ = offset;
    const auto part = bytes.first(std::min(bytes.size(), kBlockNbytes - offset % kBlockNbytes));
    std::memcpy(memory_of_block() + filled_, part.data(), part.size());
    filled_ += part.size();
    offset += part.size();
    bytes = bytes.subspan(part.size());
    if (offset % kBlockNbytes == 0) submit();
  }
}

bool BlockWriter::takes_in_place(const std::byte* data) const {
  if (!is_direct_) return true;
  return is_in_place_ && reinterpret_cast<uintptr_t>(data) % kMemoryAlignment == 0;
}

// What shares a page with other bytes is copied, so that the page is written once.
void BlockWriter::write_in_place(uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (run_.empty()) {
      const auto head = bytes.first(std::min(align_direct(offset) - offset, bytes.size()));
      copy(offset, head);
      offset += head.size();
      bytes = bytes.subspan(head.size());
      if (!takes_in_place(bytes.data())) return copy(offset, bytes);
      run_ = bytes.first(0);
      run_begin_ = offset;
    } else if (offset != run_begin_ + run_.size() || bytes.data() != run_.data() + run_.size()) {
      end_run();
      continue;
    }
    const size_t part = std::min(bytes.size(), kBlockNbytes - offset % kBlockNbytes);
    run_ = {run_.data(), run_.size() + part};
    offset += part;
    bytes = bytes.subspan(part);
    if (offset % kBlockNbytes == 0) end_run();
  }
}

void BlockWriter::end_run() {
  const std::span<const std::byte> run = std::exchange(run_, {});
  const size_t whole = run.size() / kDirectAlignment * kDirectAlignment;
  if (whole < kMinInPlace) return copy(run_begin_, run);
  submit();
  start(run_begin_, run.first(whole));
  copy(run_begin_ + whole, run.subspan(whole));
}

void BlockWriter::submit() {
  if (filled_ == 0) return;
  start(begin_, {memory_of_block(), filled_});
  filled_ = 0;
}

void BlockWriter::start(uint64_t offset, std::span<const std::byte> bytes) {
  if (!has_threads_) return write_block(offset, bytes);
  Slot& slot = slots_[slot_];
  if (!slot.thread) slot.thread = make_worker_stream("zerorun-save");
  slot.thread->submit([this, offset, bytes] { write_block(offset, bytes); });
  slot_ = (slot_ + 1) % kSlots;
  if (slots_[slot_].thread) slots_[slot_].thread->synchronize();  // its memory is free again
}

void BlockWriter::wait() {
  for (const Slot& slot : slots_) {
    if (slot.thread) slot.thread->synchronize();
  }
}

void BlockWriter::flush() {
  end_run();
  wait();
}

void BlockWriter::finish() {
  end_run();
  if (filled_ > 0) write_block(begin_, {memory_of_block(), filled_});
  filled_ = 0;
  wait();
  file_.sync();
}

// Whole pages of the disk directly; what others share a page with through the cache. No page gets
// bytes both ways.
void BlockWriter::write_block(uint64_t offset, std::span<const std::byte> bytes) {
  const size_t head = std::min<size_t>(align_direct(offset) - offset, bytes.size());
  const size_t whole = (bytes.size() - head) / kDirectAlignment * kDirectAlignment;
  const auto address = reinterpret_cast<uintptr_t>(bytes.data() + head);
  // A file system that does not write like this, or has no more room, says why when it writes
  // through the cache.
  if (!is_direct_ || write_at(direct_.get(), offset + head, bytes.subspan(head, whole)) < whole) {
    // A disk that refuses memory which begins within a page takes copies.
    is_in_place_ = false;
    if (address % kDirectAlignment == 0) is_direct_ = false;
    file_.write(offset, bytes);
    file_.start_sync(offset, bytes.size());
    return;
  }
  file_.write(offset, bytes.first(head));
  file_.write(offset + head + whole, bytes.subspan(head + whole));
}

}  // namespace zerorun
