#include "comm/rendezvous/memory_store.h"

#include "core/check.h"

namespace zerorun {

void MemoryStore::set(const std::string& key, const std::string& value) {
  {
    const std::lock_guard lock(mutex_);
    values_.insert_or_assign(key, value);
  }
  changed_.notify_all();
}

std::string MemoryStore::get(const std::string& key, std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, timeout, [&] { return values_.contains(key); })) {
    fail<CommError>("waited {:.1f} s for '{}' in the store: the rank that sets it has not started",
                    std::chrono::duration<double>(timeout).count(), key);
  }
  return values_.at(key);
}

std::optional<std::string> MemoryStore::find(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto found = values_.find(key);
  if (found == values_.end()) return std::nullopt;
  return found->second;
}

std::shared_ptr<Store> make_memory_store() { return std::make_shared<MemoryStore>(); }

}  // namespace zerorun
