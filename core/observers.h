#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace zerorun {

// The time of the clock that is used for all spans of time.
inline int64_t steady_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}
inline double steady_seconds() { return 1e-9 * static_cast<double>(steady_ns()); }

// A list of callbacks that are called when something happens, on any thread. Without observers,
// checking for them costs one load.
template <typename Thing>
class Observers {
 public:
  using Observer = std::function<void(const Thing&)>;

  // Adds an observer, which is called until the returned handle is released.
  std::shared_ptr<void> add(Observer observer) {
    auto kept = std::make_shared<const Observer>(std::move(observer));
    const std::lock_guard lock(mutex_);
    forget_gone();
    observers_.push_back(kept);
    any_.store(true, std::memory_order_relaxed);
    return std::const_pointer_cast<Observer>(kept);
  }

  // False if there is no observer. May remain true after the last one was released, until the next
  // notify().
  bool any() const { return any_.load(std::memory_order_relaxed); }

  void notify(const Thing& thing) {
    std::vector<std::shared_ptr<const Observer>> present;
    {
      const std::lock_guard lock(mutex_);
      forget_gone();
      for (const auto& one : observers_) {
        if (auto observer = one.lock()) present.push_back(std::move(observer));
      }
    }
    for (const auto& observer : present) (*observer)(thing);
  }

 private:
  void forget_gone() {
    std::erase_if(observers_, [](const auto& one) { return one.expired(); });
    any_.store(!observers_.empty(), std::memory_order_relaxed);
  }

  std::mutex mutex_;
  std::vector<std::weak_ptr<const Observer>> observers_;
  std::atomic<bool> any_ = false;
};

}  // namespace zerorun
