#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "zerorun/device.h"

namespace zerorun {

// Memory that is asked for; `purpose` is a word for messages.
struct MemoryRequest {
  size_t nbytes = 0;
  MemoryCategory category = MemoryCategory::other;
  std::string_view purpose;
};

// Live and peak bytes of each memory category. Safe to use from several threads.
class MemoryLedger {
 public:
  void add(size_t nbytes, MemoryCategory category);
  void remove(size_t nbytes, MemoryCategory category) noexcept;
  MemoryUse use(MemoryCategory category) const;
  // "parameters 12 MiB, gradients 0 B, ...", for messages.
  std::string summary() const;
  // In the device's own memory, without what is kept.
  int64_t live_bytes() const;
  // What is in force, and no advice.
  void use_settings(const MemorySettings& settings);
  // Settings that would make up for the `missing` bytes of a request, for messages: each that is
  // enough by itself, or else all together where they are.
  std::string advice(const MemoryRequest& request, size_t missing) const;

 private:
  struct Remedy {
    std::string_view setting;
    std::string_view of;  // what it acts on
    size_t nbytes = 0;
  };
  // From what costs a step the least time to what costs the most.
  std::vector<Remedy> remedies(const MemoryRequest& request) const;

  struct Entry {
    std::atomic<int64_t> live{0};
    std::atomic<int64_t> peak{0};
  };
  std::array<Entry, kMemoryCategories> entries_;
  mutable std::mutex mutex_;
  MemorySettings settings_;  // guarded by mutex_
};

}  // namespace zerorun
