#include "checkpoint/loading/spare_memory.h"

#include <algorithm>
#include <utility>

#include "zerorun/error.h"

namespace zerorun {

namespace {

constexpr size_t kPageNbytes = 4096;  // the system provides at least one when it is written

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

}  // namespace zerorun
