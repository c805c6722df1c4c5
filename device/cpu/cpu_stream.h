#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "core/observers.h"
#include "zerorun/device.h"
#include "zerorun/work_span.h"

namespace zerorun {

// An event of a CPU stream, which can tell others when it happens.
class HostEvent : public Event::State {
 public:
  // Calls `then` once, with the event's error or null: now if it has happened, else on the thread
  // where it does, which `then` must not hold up. It must not throw.
  virtual void on_ready(std::function<void(std::exception_ptr)> then) = 0;
};

// A stream of host work. Transports that move data with the CPU submit their steps here, so that
// they keep their place among the device's kernels.
class CpuStream : public Stream {
 public:
  using WorkObservers = std::shared_ptr<Observers<WorkSpan>>;

  CpuStream() = default;
  CpuStream(std::string_view name, WorkObservers observers)
      : name_(name), observers_(std::move(observers)) {}

  // Runs `task` after everything submitted before it: now, on an inline stream; otherwise on the
  // stream's worker thread. What a task throws is kept, skips all later tasks, and is rethrown by
  // every later synchronize() of this stream and of events recorded on it (an inline stream throws
  // at once and keeps nothing).
  virtual void submit(std::function<void()> task) = 0;
  // The same; observers learn when it ran. `what` is a literal.
  void submit_work(const char* what, size_t nbytes, std::function<void()> task);
  virtual bool is_inline() const = 0;

 private:
  const std::string name_;
  const WorkObservers observers_;  // null: none
};

std::unique_ptr<CpuStream> make_inline_stream(const CpuStream::WorkObservers& observers = nullptr);
std::unique_ptr<CpuStream> make_worker_stream(std::string_view name,
                                              const CpuStream::WorkObservers& observers = nullptr);

// The stream as a CpuStream; throws InternalError for a stream of another device.
CpuStream& cpu_stream(Stream& stream);

}  // namespace zerorun
