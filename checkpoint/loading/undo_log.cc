#include "checkpoint/loading/undo_log.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "os/page_pool.h"
#include "zerorun/error.h"

namespace zerorun {

namespace {

constexpr size_t kPageNbytes = 4096;  // the system provides at least one when it is written

bool is_zero(std::span<const std::byte> bytes) {
  static constexpr std::array<std::byte, 4096> kZeros{};
  while (!bytes.empty()) {
    const size_t nbytes = std::min(bytes.size(), kZeros.size());
    if (std::memcmp(bytes.data(), kZeros.data(), nbytes) != 0) return false;
    bytes = bytes.subspan(nbytes);
  }
  return true;
}

TensorView view_at(std::byte* data, size_t nbytes) {
  return {data, static_cast<int64_t>(nbytes), DType::uint8};
}

}  // namespace

SpareMemory::SpareMemory(Device& host, uint64_t limit)
    : host_(host), left_(limit), thread_(make_worker_stream("zerorun-memory")) {
  thread_->submit([this] { provide(); });
}

SpareMemory::~SpareMemory() {
  {
    const std::scoped_lock lock(mutex_);
    is_closed_ = true;
  }
  changed_.notify_all();
  thread_->synchronize();
}

bool SpareMemory::is_wanted() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return is_closed_ || ready_.size() < kAhead; });
  return !is_closed_ && left_ > 0;
}

void SpareMemory::provide() {
  try {
    while (is_wanted()) {
      const size_t nbytes = std::min<uint64_t>(kSlabNbytes, left_);
      Buffer slab = host_.allocate(nbytes, MemoryCategory::other);
      for (size_t page = 0; page < nbytes; page += kPageNbytes) slab.data()[page] = std::byte{0};
      const std::scoped_lock lock(mutex_);
      left_ -= nbytes;
      ready_.push_back(std::move(slab));
    }
  } catch (const Error&) {
    // There is no more memory: take() tells by giving none.
  }
}

std::span<std::byte> SpareMemory::take(size_t nbytes) {
  const std::scoped_lock lock(mutex_);
  if (free_.size() < nbytes) {
    if (ready_.empty() || ready_.front().nbytes() < nbytes) return {};
    used_.push_back(std::move(ready_.front()));
    ready_.pop_front();
    changed_.notify_all();
    free_ = {used_.back().data(), used_.back().nbytes()};
  }
  const std::span<std::byte> memory = free_.first(nbytes);
  free_ = free_.subspan(nbytes);
  return memory;
}

bool UndoLog::keep(std::byte* to, size_t nbytes) {
  // Otherwise is_zero() would map zero pages where nothing was ever written, after which each small
  // page costs a fault of its own. The system may refuse it: then it is slow.
  populate_pages(to, nbytes);
  return keep(to, {to, nbytes});
}

bool UndoLog::write(std::byte* to, std::span<const std::byte> bytes) {
  if (!device_.is_host()) return write_to_gpu(to, bytes);
  if (!keep(to, bytes.size())) return false;
  std::memcpy(to, bytes.data(), bytes.size());
  return true;
}

// One thread at a time: the stream is in order anyway, and the bus faster than the disk.
bool UndoLog::write_to_gpu(std::byte* to, std::span<const std::byte> bytes) {
  const std::scoped_lock lock(gpu_mutex_);
  if (staging_.nbytes() < bytes.size()) staging_ = device_.allocate_pinned(bytes.size());
  const TensorView tensor = view_at(to, bytes.size());
  Stream& stream = device_.inline_stream();
  device_.download(stream, tensor, staging_.data());
  stream.synchronize();
  if (!keep(to, {staging_.data(), bytes.size()})) return false;
  device_.upload(stream, bytes.data(), tensor);
  stream.synchronize();
  return true;
}

bool UndoLog::keep(std::byte* to, std::span<const std::byte> old) {
  const bool was_zero = is_zero(old);
  const std::span<std::byte> copy = was_zero ? std::span<std::byte>() : take_(old.size());
  if (!was_zero && copy.empty()) return false;
  if (!was_zero) std::memcpy(copy.data(), old.data(), old.size());
  const std::scoped_lock lock(mutex_);
  overwritten_.push_back({to, copy.data(), old.size()});
  return true;
}

void UndoLog::undo() {
  std::vector<std::byte> zeros;
  std::for_each(overwritten_.rbegin(), overwritten_.rend(), [&](const Overwritten& each) {
    if (each.old == nullptr) zeros.resize(std::max(zeros.size(), each.nbytes));
    const std::byte* old = each.old == nullptr ? zeros.data() : each.old;
    device_.upload(device_.inline_stream(), old, view_at(each.to, each.nbytes));
    device_.inline_stream().synchronize();
  });
  overwritten_.clear();
}

}  // namespace zerorun
