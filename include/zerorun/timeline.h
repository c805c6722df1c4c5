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

// The spans in which every rank computed, communicated, copied, read and wrote in some steps of a
// training: a file in Chrome's trace format, for Perfetto. Ranks are aligned by their host's clock,
// and across hosts by a barrier.
//
// Its `otherData.hidden` says for each rank which part of the time of its reductions and gathers
// the rank computed meanwhile, from 0 to 1, or null where there were none.
class ZR_API Timeline {
 public:
  // Engine and communicator must outlive it. `step` is the last one that has been taken. Throws
  // ConfigError for steps that contradict each other and, on rank 0, IoError for a file that cannot
  // be written.
  static std::unique_ptr<Timeline> create(Engine& engine, Communicator& comm,
                                          TimelineOptions options, int64_t step);
  virtual ~Timeline() = default;

  virtual bool is_recording() const = 0;
  // Work of the program's own on its thread, such as one module's forward; `of` may be empty. Spans
  // enclose each other or do not overlap. Ignored unless it records.
  virtual void add(std::string_view name, std::string_view of, double begin_s, double end_s) = 0;
  // After each step; the last one writes the file. finish is for a training that ends before, and
  // does nothing where that has happened. Both return a line about the file on rank 0 when they
  // wrote it, and else "", and throw IoError there when it cannot be written. Collective.
  virtual std::string end_step(int64_t step) = 0;
  virtual std::string finish() = 0;
};

}  // namespace zerorun
