#pragma once

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#endif

namespace zerorun {

// Names what is enqueued while this lives in the timelines of NVIDIA's profilers. Costs nothing
// unless one is attached.
class ProfilerRange {
 public:
#if __has_include(<nvtx3/nvToolsExt.h>)
  explicit ProfilerRange(const char* name) { nvtxRangePushA(name); }
  ~ProfilerRange() { nvtxRangePop(); }
#else
  explicit ProfilerRange(const char* /*name*/) {}
#endif
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;
};

}  // namespace zerorun
