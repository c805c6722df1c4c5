#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace zerorun {

// Ranges of addresses that have memory for a part of the time, each always at the same place. A
// range gets the pages that one of its size gave back: the system clears every new page, which
// takes longer than a copy of it. There is never more memory than ranges had at one time.
//
// Ranges have numbers that the caller chooses. Threads may use different ranges at the same time.
class PagePool {
 public:
  PagePool() = default;
  ~PagePool();

  // Returns addresses for `nbytes`. Until take(), whoever reads or writes there gets SIGSEGV.
  std::byte* reserve(int range, size_t nbytes);
  // Returns the addresses, which have memory of any contents from now on, for at least `nbytes`.
  // Throws DeviceError if the system has none.
  std::byte* take(int range, size_t nbytes);
  // The reverse of take().
  void give(int range) noexcept;

 private:
  struct Pages {
    std::byte* at = nullptr;
    size_t nbytes = 0;
  };
  // The first of `from` that has so many bytes, which it leaves; empty: there is none.
  static Pages pick(std::vector<Pages>& from, size_t nbytes);
  // Keeps the pages of a range for another one; false if the system cannot.
  bool keep(const Pages& range);

  std::mutex mutex_;
  std::map<int, Pages> ranges_;
  std::vector<Pages> spare_;  // what ranges gave back, at addresses of its own; oldest first
  std::vector<Pages> empty_;  // such addresses without memory
  size_t taken_bytes_ = 0;
  size_t spare_bytes_ = 0;
  size_t most_taken_bytes_ = 0;
};

// Makes the system provide the pages that have bytes of [data, data + nbytes) now. Otherwise it
// does so when they are first written, and raises a signal if it has none. Returns 0, or the error;
// EINVAL: Linux before 5.14 cannot do this.
inline int populate_pages(std::byte* data, size_t nbytes) {
  const size_t before =
      reinterpret_cast<uintptr_t>(data) % static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return ::madvise(data - before, before + nbytes, MADV_POPULATE_WRITE) == 0 ? 0 : errno;
}

}  // namespace zerorun
