#pragma once

#include <cuda_runtime.h>

// NVTX is headers only, which CUDA's toolkit has.
#if __has_include(<nvtx3/nvToolsExt.h>) && __has_include(<nvtx3/nvToolsExtCudaRt.h>)
#define ZR_HAVE_NVTX
#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtCudaRt.h>
#endif

namespace zerorun {

// Names the work that is enqueued during the lifetime of this object in the timelines of NVIDIA's
// profilers. Costs nothing unless one is attached.
class ProfilerRange {
 public:
#ifdef ZR_HAVE_NVTX
  explicit ProfilerRange(const char* name) { nvtxRangePushA(name); }
  ~ProfilerRange() { nvtxRangePop(); }
#else
  explicit ProfilerRange(const char* /*name*/) {}
#endif
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;
};

inline void name_in_profilers([[maybe_unused]] cudaStream_t stream,
                              [[maybe_unused]] const char* name) {
#ifdef ZR_HAVE_NVTX
  nvtxNameCudaStreamA(stream, name);
#endif
}

}  // namespace zerorun
