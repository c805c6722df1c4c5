#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "zerorun/communicator.h"
#include "zerorun/engine.h"
#include "zerorun/export.h"

namespace zerorun {

struct TimelineOptions {
  std::string file;
  int64_t first_step = 2;  // counted from 1
  int64_t last_step = 4;
};

// Records when every rank computed, communicated, copied, read and wrote in some steps of a
// training, and writes a file in Chrome's trace format for Perfetto (docs/timeline.md). The clocks
// of ranks on different hosts are aligned by a barrier.
//
// In the file `otherData.hidden` has for each rank the fraction of the time of its reductions and
// gathers that was overlapped with computation, from 0 to 1, or null if there were none.
class ZR_API Timeline {
 public:
  // `step` is the number of the last completed step. Engine and communicator must outlive the
  // timeline. Throws ConfigError if first_step and last_step contradict each other and, on rank 0,
  // IoError if the file cannot be written.
  static std::unique_ptr<Timeline> create(Engine& engine, Communicator& comm,
                                          TimelineOptions options, int64_t step);
  virtual ~Timeline() = default;

  virtual bool is_recording() const = 0;
  // Adds a span of work of the program on its thread, such as the forward of a module (`of`, which
  // may be empty). Spans must be nested or disjoint. Does nothing unless is_recording().
  virtual void add(std::string_view name, std::string_view of, double begin_s, double end_s) = 0;
  // end_step must be called after each step; after the last recorded step it writes the file.
  // finish writes the file if training ends earlier, else does nothing. When they write the file,
  // they return a line about it on rank 0, otherwise "". They throw IoError on rank 0 if the file
  // cannot be written. Collective.
  virtual std::string end_step(int64_t step) = 0;
  virtual std::string finish() = 0;
};

}  // namespace zerorun
