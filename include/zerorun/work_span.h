#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

namespace zerorun {

// A span of completed work. Times are in seconds of std::chrono::steady_clock, which all processes
// of a host share. The strings are valid only during the call of the observer.
struct WorkSpan {
  std::string_view stream;  // kProgramStream, or the name passed to make_stream
  std::string_view name;    // "update", "wait for reductions"
  int64_t bytes = 0;        // bytes written or moved; 0: unknown
  double begin_s = 0;
  double end_s = 0;
};

// Name of the thread that calls the engine, which is also the inline stream of a CPU.
inline constexpr std::string_view kProgramStream = "program";

// Called on the thread that did the work, possibly by several threads concurrently. It must not
// throw and must return quickly.
using WorkObserver = std::function<void(const WorkSpan&)>;
// An observer is called until its subscription is released; a call that has already started may
// still be running then.
using Subscription = std::shared_ptr<void>;

}  // namespace zerorun
