#pragma once

#include <cstddef>
#include <functional>

namespace zerorun {

// A block of host memory and the information needed to free it.
struct HostBlock {
  void* data = nullptr;  // null if the allocation failed
  std::function<void()> free;
};

// Allocates uninitialised memory, 64-byte aligned, and page-aligned from the size of a page on.
// Blocks of 2 MiB and more are mapped separately and use huge pages if available: otherwise kernels
// that stream over several arrays spend much of their time in page walks. A freed mapping returns
// to the system immediately.
HostBlock allocate_host(size_t nbytes);

}  // namespace zerorun
