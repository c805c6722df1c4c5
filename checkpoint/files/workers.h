#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "device/cpu/cpu_stream.h"

namespace zerorun {

inline constexpr size_t kReadingThreads = 4;  // of a rank

// A few threads that process items which mostly wait for a disk or for memory. The calling thread
// is one of them; the others start when there is work for them.
class Workers {
 public:
  explicit Workers(size_t threads) : threads_(threads) {}

  // Calls body(i) for each i below `count`, in ascending order, several at a time. Rethrows the
  // error of the lowest item that failed; later items may be skipped.
  void each(size_t count, const std::function<void(size_t)>& body);

 private:
  const size_t threads_;
  std::vector<std::unique_ptr<CpuStream>> helpers_;
};

}  // namespace zerorun
