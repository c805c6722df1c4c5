#include "device/cpu/host_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>

namespace zerorun {

namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = kMappedBlock;

size_t page_size() { return static_cast<size_t>(::sysconf(_SC_PAGESIZE)); }

constexpr size_t round_up(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

HostBlock map_huge(size_t nbytes) {
  const size_t size = round_up(nbytes, page_size());
  // One huge page more than needed, so that an aligned block lies inside; the rest is unmapped.
  const size_t mapped = size + kHugePage;
  void* const address =
      ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) return {};
  auto* const begin = static_cast<std::byte*>(address);
  const size_t head =
      round_up(reinterpret_cast<uintptr_t>(begin), kHugePage) - reinterpret_cast<uintptr_t>(begin);
  std::byte* const data = begin + head;
  if (head > 0) ::munmap(begin, head);
  if (mapped - head > size) ::munmap(data + size, mapped - head - size);
  // Advice only: without huge pages the block works as well, more slowly.
  ::madvise(data, size, MADV_HUGEPAGE);
  return {data, [data, size] { ::munmap(data, size); }};
}

}  // namespace

HostBlock allocate_host(size_t nbytes) {
  if (nbytes > static_cast<size_t>(std::numeric_limits<ptrdiff_t>::max()) - 2 * kHugePage) {
    return {};
  }
  if (nbytes >= kMappedBlock) return map_huge(nbytes);
  const size_t alignment = nbytes < page_size() ? kAlignment : page_size();
  void* const data =
      std::aligned_alloc(alignment, round_up(std::max<size_t>(nbytes, 1), alignment));
  if (data == nullptr) return {};
  return {data, [data] { std::free(data); }};
}

}  // namespace zerorun
