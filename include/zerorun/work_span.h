#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

namespace zerorun {

// Work that has been done. Times are seconds of std::chrono::steady_clock, which all processes of a
// host share. The texts are valid during the observer's call.
struct WorkSpan {
  std::string_view stream;  // kProgramStream, or the name that make_stream was given
  std::string_view name;    // "update", "wait for reductions"
  int64_t bytes = 0;        // written or moved; 0: says nothing
  double begin_s = 0;
  double end_s = 0;
};

// The thread that drives the engine, and the inline stream of a CPU.
inline constexpr std::string_view kProgramStream = "program";

// Called on the thread that has done the work, by several at a time; must not throw or take long.
using WorkObserver = std::function<void(const WorkSpan&)>;
// An observer is told until its subscription goes, and may still be busy with a span then.
using Subscription = std::shared_ptr<void>;

}  // namespace zerorun
