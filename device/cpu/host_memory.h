#pragma once

#include <cstddef>
#include <functional>

namespace zerorun {

// A block of host memory and how to give it back.
struct HostBlock {
  void* data = nullptr;  // null when the system refused
  std::function<void()> free;
};

// 64-byte aligned, from a page on page-aligned; uninitialised. Blocks of 2 MiB and more are mapped
// on their own, aligned to and backed by huge pages where the system has them: kernels that stream
// over several arrays spend much of their time in page walks otherwise, and freed blocks return to
// the system at once.
HostBlock allocate_host(size_t nbytes);

}  // namespace zerorun
