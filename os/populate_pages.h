#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

namespace zerorun {

// Makes the system provide the pages that have bytes of [data, data + nbytes) now. Otherwise it
// does so when they are first written, and raises a signal if it has none. Returns 0, or the error;
// EINVAL: Linux before 5.14 cannot do this.
inline int populate_pages(std::byte* data, size_t nbytes) {
  const size_t before =
      reinterpret_cast<uintptr_t>(data) % static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return ::madvise(data - before, before + nbytes, MADV_POPULATE_WRITE) == 0 ? 0 : errno;
}

}  // namespace zerorun
