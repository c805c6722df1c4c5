#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <string>
#include <string_view>

#include "zerorun/device.h"

namespace zerorun {

// A request for memory; `purpose` is a word for messages.
struct MemoryRequest {
  size_t nbytes = 0;
  MemoryCategory category = MemoryCategory::other;
  std::string_view purpose;
};

// Counts live and peak bytes of each memory category. Thread-safe.
class MemoryLedger {
 public:
  void add(size_t nbytes, MemoryCategory category);
  void remove(size_t nbytes, MemoryCategory category) noexcept;
  MemoryUse use(MemoryCategory category) const;
  // Returns "parameters 12 MiB, gradients 0 B, ...", for messages.
  std::string summary() const;
  // Returns the bytes in use in the device's memory, without cached memory (MemoryCategory::kept).
  int64_t live_bytes() const;
  // Describes a failed request that lacks `missing` bytes.
  MemoryShortage shortage(const MemoryRequest& request, size_t missing) const;

 private:
  struct Entry {
    std::atomic<int64_t> live{0};
    std::atomic<int64_t> peak{0};
  };
  std::array<Entry, kMemoryCategories> entries_;
};

}  // namespace zerorun
