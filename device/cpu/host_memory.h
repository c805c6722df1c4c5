#pragma once

#include <cstddef>
#include <functional>

namespace zerorun {

// A block of host memory and the information needed to free it.
struct HostBlock {
  void* data = nullptr;  // null if the allocation failed
  std::function<void()> free;
};

// From this size on a block is a mapping of its own: zero, and without memory until it is written.
constexpr size_t kMappedBlock = size_t{2} << 20;

// Allocates memory, uninitialised below kMappedBlock, 64-byte aligned, and page-aligned from the
// size of a page on. Mapped blocks use huge pages if available: otherwise kernels that stream over
// several arrays spend much of their time in page walks. A freed mapping returns to the system
// immediately.
HostBlock allocate_host(size_t nbytes);

}  // namespace zerorun
