#include "checkpoint/files/workers.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>

namespace zerorun {

void Workers::each(size_t count, const std::function<void(size_t)>& body) {
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  size_t failed = count;  // the lowest item that has
  std::exception_ptr error;
  const auto work = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        body(i);
      } catch (...) {
        next = count;  // those before this one have begun
        const std::scoped_lock lock(mutex);
        if (i >= failed) continue;
        failed = i;
        error = std::current_exception();
      }
    }
  };
  const size_t helping = std::min(threads_, count) - (count > 0 ? 1 : 0);
  while (helpers_.size() < helping) helpers_.push_back(make_worker_stream("zerorun-load"));
  for (size_t i = 0; i < helping; ++i) helpers_[i]->submit(work);
  work();
  for (size_t i = 0; i < helping; ++i) helpers_[i]->synchronize();
  if (error) std::rethrow_exception(error);
}

}  // namespace zerorun
