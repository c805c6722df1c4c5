#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <string>

#include "zerorun/device.h"

namespace zerorun {

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
  // Settings that would free `missing` bytes, for messages: one by itself where one is enough,
  // otherwise all that free something.
  std::string advice(size_t missing) const;

 private:
  struct Entry {
    std::atomic<int64_t> live{0};
    std::atomic<int64_t> peak{0};
  };
  std::array<Entry, kMemoryCategories> entries_;
};

// "123 B", "1.5 MiB".
std::string format_bytes(size_t nbytes);

}  // namespace zerorun
