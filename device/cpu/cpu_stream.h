#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/observers.h"
#include "zerorun/device.h"
#include "zerorun/work_span.h"

namespace zerorun {

// An event of a CPU stream, which can call a function when it happens.
class HostEvent : public Event::State {
 public:
  // Calls `then` once, with the error of the event or null: immediately if the event has happened,
  // else on the thread on which it happens. `then` must return quickly and must not throw.
  virtual void on_ready(std::function<void(std::exception_ptr)> then) = 0;
};

// An event of a device whose driver may hold up one thread's call until the device has done the
// work for which another thread's call waits.
class DeviceEvent : public Event::State {
 public:
  // Returns an event that happens soon after this one, and for which threads wait without calling
  // the driver. Empty if the device has none.
  virtual std::optional<Event> for_host() = 0;
};

// A stream of work on the host. Transports that move data with the CPU submit their steps to it, so
// that these are ordered with the device's kernels.
class CpuStream : public Stream {
 public:
  using WorkObservers = std::shared_ptr<Observers<WorkSpan>>;

  CpuStream() = default;
  CpuStream(std::string_view name, WorkObservers observers)
      : name_(name), observers_(std::move(observers)) {}

  // Runs `task` after all tasks that were submitted before: immediately on an inline stream, else
  // on the stream's worker thread. If a task throws, all later tasks are skipped, and the exception
  // is rethrown by every later synchronize() of the stream and of events recorded on it. An inline
  // stream throws immediately and does not keep the exception.
  virtual void submit(std::function<void()> task) = 0;
  // Like submit, and reports to observers when the task ran. `what` must be a string literal.
  void submit_work(const char* what, size_t nbytes, std::function<void()> task);
  virtual bool is_inline() const = 0;

 private:
  const std::string name_;
  const WorkObservers observers_;  // null: none
};

std::unique_ptr<CpuStream> make_inline_stream(const CpuStream::WorkObservers& observers = nullptr);
std::unique_ptr<CpuStream> make_worker_stream(std::string_view name,
                                              const CpuStream::WorkObservers& observers = nullptr);

// Waits for the stream count as waits for offloading (WaitTimes) if a thread of the host runs it.
void serve_offloading(Stream& stream);

// Casts a stream to CpuStream. Throws InternalError if it belongs to another device.
CpuStream& cpu_stream(Stream& stream);

}  // namespace zerorun
