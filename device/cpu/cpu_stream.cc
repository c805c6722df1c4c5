#include "device/cpu/cpu_stream.h"

#include <pthread.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "core/check.h"
#include "core/wait_clock.h"

namespace zerorun {

namespace {

class InlineStream final : public CpuStream {
 public:
  explicit InlineStream(const WorkObservers& observers) : CpuStream(kProgramStream, observers) {}
  Event record() override { return {}; }
  void wait(const Event& event) override { event.synchronize(); }
  void synchronize() override {}
  void submit(std::function<void()> task) override { task(); }
  bool is_inline() const override { return true; }
};

// Counts the finished tasks of a worker stream. Events share it, so that they may outlive the
// stream.
class Progress {
 public:
  using Then = std::function<void(std::exception_ptr)>;

  // That of the worker's thread.
  WaitClock& waits() { return waits_; }
  // Must be called when a task is done or skipped; `error` is null unless it threw.
  void advance(std::exception_ptr error) {
    std::vector<Then> due;
    {
      const std::lock_guard lock(mutex_);
      ++finished_;
      if (error) error_ = std::move(error);
      error = error_;
      std::erase_if(waiting_, [&](Waiting& one) {
        if (one.ticket > finished_) return false;
        due.push_back(std::move(one.then));
        return true;
      });
    }
    for (const Then& then : due) then(error);
    changed_.notify_all();
  }
  // HostEvent::on_ready
  void on_reached(uint64_t ticket, Then then) {
    std::exception_ptr error;
    {
      const std::lock_guard lock(mutex_);
      if (finished_ < ticket) {
        waiting_.push_back({ticket, std::move(then)});
        return;
      }
      error = error_;
    }
    then(error);
  }
  bool reached(uint64_t ticket) const {
    const std::lock_guard lock(mutex_);
    return finished_ >= ticket;
  }
  bool failed() const {
    const std::lock_guard lock(mutex_);
    return error_ != nullptr;
  }
  // Blocks until `ticket` tasks have finished; rethrows the stream's error. In a forked child,
  // which does not have the thread, throws InternalError unless they had before.
  void wait(uint64_t ticket) const {
    std::exception_ptr error;
    {
      std::unique_lock lock(mutex_);
      if (finished_ < ticket) {
        ZR_CHECK(getpid() == process_,
                 "a stream of the process that forked this one is waited for");
        const StreamWait wait(waits_);
        changed_.wait(lock, [&] { return finished_ >= ticket; });
      }
      error = error_;
    }
    if (error) std::rethrow_exception(error);
  }

 private:
  struct Waiting {
    uint64_t ticket;
    Then then;
  };

  const pid_t process_ = getpid();
  WaitClock waits_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  uint64_t finished_ = 0;
  std::exception_ptr error_;
  std::vector<Waiting> waiting_;
};

class WorkerEvent final : public HostEvent {
 public:
  WorkerEvent(std::shared_ptr<Progress> progress, uint64_t ticket)
      : progress_(std::move(progress)), ticket_(ticket) {}
  bool ready() const override { return progress_->reached(ticket_); }
  void synchronize() override { progress_->wait(ticket_); }
  void on_ready(std::function<void(std::exception_ptr)> then) override {
    progress_->on_reached(ticket_, std::move(then));
  }

 private:
  const std::shared_ptr<Progress> progress_;
  const uint64_t ticket_;
};

class WorkerStream final : public CpuStream {
 public:
  WorkerStream(std::string_view name, const WorkObservers& observers)
      : CpuStream(name, observers), progress_(std::make_shared<Progress>()) {
    try {
      worker_ = std::thread([this] { run(); });
    } catch (const std::system_error& error) {
      fail<DeviceError>("cannot start the thread of stream '{}': {}", name, error.what());
    }
    // The kernel keeps 15 characters. The name only serves debuggers: a failure changes nothing.
    pthread_setname_np(worker_.native_handle(), std::string(name.substr(0, 15)).c_str());
  }
  WorkerStream(const WorkerStream&) = delete;
  WorkerStream& operator=(const WorkerStream&) = delete;
  ~WorkerStream() override {
    // A forked child does not have the thread. It may destroy neither what that waits for nor
    // tasks, which would tell the ranks that they were skipped.
    if (getpid() != process_) {
      worker_.detach();
      queue_.release();  // NOLINT(bugprone-unused-return-value)
      return;
    }
    {
      const std::lock_guard lock(queue_->mutex);
      queue_->closing = true;
    }
    queue_->changed.notify_one();
    worker_.join();
  }

  void submit(std::function<void()> task) override {
    ZR_CHECK(task != nullptr, "got an empty task");
    {
      const std::lock_guard lock(queue_->mutex);
      queue_->tasks.push_back(std::move(task));
      ++queue_->submitted;
    }
    queue_->changed.notify_one();
  }
  Event record() override { return Event(std::make_shared<WorkerEvent>(progress_, submitted())); }
  void wait(const Event& event) override {
    if (!event.state()) return;
    // What the device does later may wait for this thread.
    auto* const device = dynamic_cast<DeviceEvent*>(event.state().get());
    const std::optional<Event> told = device == nullptr ? std::nullopt : device->for_host();
    submit([event = told.value_or(event)] { event.synchronize(); });
  }
  void synchronize() override { progress_->wait(submitted()); }
  bool is_inline() const override { return false; }

 private:
  uint64_t submitted() const {
    const std::lock_guard lock(queue_->mutex);
    return queue_->submitted;
  }

  void run() {
    progress_->waits().adopt();
    while (std::function<void()> task = next_task()) {
      std::exception_ptr error;
      if (!progress_->failed()) {
        try {
          task();
        } catch (...) {
          error = std::current_exception();
        }
      }
      task = nullptr;  // the task's captures are destroyed before it is reported as done
      progress_->advance(std::move(error));
    }
  }

  // Waits for the next task. Returns an empty function if the stream is being destroyed and all
  // work is done.
  std::function<void()> next_task() {
    std::unique_lock lock(queue_->mutex);
    queue_->changed.wait(lock, [&] { return queue_->closing || !queue_->tasks.empty(); });
    if (queue_->tasks.empty()) return nullptr;
    std::function<void()> task = std::move(queue_->tasks.front());
    queue_->tasks.pop_front();
    return task;
  }

  struct Queue {
    std::mutex mutex;  // protects all of it
    std::condition_variable changed;
    std::deque<std::function<void()>> tasks;
    uint64_t submitted = 0;
    bool closing = false;
  };

  const pid_t process_ = getpid();
  const std::shared_ptr<Progress> progress_;
  std::unique_ptr<Queue> queue_ = std::make_unique<Queue>();
  std::thread worker_;
};

}  // namespace

void CpuStream::submit_work(const char* what, size_t nbytes, std::function<void()> task) {
  if (observers_ == nullptr || !observers_->any()) {
    submit(std::move(task));
    return;
  }
  submit([this, what, nbytes, task = std::move(task)] {
    const double begin = steady_seconds();
    task();
    observers_->notify({name_, what, static_cast<int64_t>(nbytes), begin, steady_seconds()});
  });
}

std::unique_ptr<CpuStream> make_inline_stream(const CpuStream::WorkObservers& observers) {
  return std::make_unique<InlineStream>(observers);
}

std::unique_ptr<CpuStream> make_worker_stream(std::string_view name,
                                              const CpuStream::WorkObservers& observers) {
  return std::make_unique<WorkerStream>(name, observers);
}

void serve_offloading(Stream& stream) {
  auto* cpu = dynamic_cast<CpuStream*>(&stream);
  if (cpu == nullptr || cpu->is_inline()) return;
  cpu->submit([] { WaitClock::of_this_thread().serve_offloading(); });
}

CpuStream& cpu_stream(Stream& stream) {
  auto* cpu = dynamic_cast<CpuStream*>(&stream);
  ZR_CHECK(cpu != nullptr, "got a stream of another device, expected one of the CPU device");
  return *cpu;
}

}  // namespace zerorun
