#include "comm/job_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "zerorun/error.h"

namespace zerorun {

class JobState::Watcher {
 public:
  Watcher() : thread_([this] { run(); }) {}
  ~Watcher() {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  std::list<Look>::iterator add(Look look) {
    const std::lock_guard lock(mutex_);
    looks_.push_front(std::move(look));
    return looks_.begin();
  }
  void remove(std::list<Look>::iterator look) {
    std::unique_lock lock(mutex_);
    called_.wait(lock, [&] { return current_ != look; });
    looks_.erase(look);
  }
  void look_within(Clock::duration time) {
    {
      const std::lock_guard lock(mutex_);
      const Clock::time_point due = Clock::now() + time;
      if (due >= due_) return;
      due_ = due;
    }
    changed_.notify_all();
  }

 private:
  static constexpr std::chrono::seconds kLongest{1};

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      while (!closing_ && Clock::now() < due_) changed_.wait_until(lock, due_);
      if (closing_) return;
      due_ = Clock::time_point::max();
      Clock::duration pause = kLongest;
      for (current_ = looks_.begin(); current_ != looks_.end(); ++current_) {
        const Look& look = *current_;
        lock.unlock();
        pause = std::min(pause, look());
        lock.lock();
        called_.notify_all();
      }
      due_ = std::min(due_, Clock::now() + pause);
    }
  }

  std::mutex mutex_;  // guards all below; never held while a function looks
  std::list<Look> looks_;
  std::list<Look>::iterator current_ = looks_.end();  // the one that is being called
  std::condition_variable called_;                    // current_ has changed
  std::condition_variable changed_;
  Clock::time_point due_ = Clock::now() + kLongest;
  bool closing_ = false;
  std::thread thread_;
};

JobState::JobState() = default;

JobState::~JobState() {
  // A forked child has no thread to join, nor may it destroy what that thread waits for.
  if (watcher_ && !is_this_process()) {
    watcher_.release();  // NOLINT(bugprone-unused-return-value)
  }
}

std::shared_ptr<void> JobState::join(Member member) {
  const std::lock_guard lock(mutex_);
  if (const std::string found = error(); !found.empty()) member.set_error(found);
  members_.push_front(std::move(member));
  return {nullptr, [job = shared_from_this(), place = members_.begin()](void*) {
            if (!job->is_this_process()) return;
            const std::scoped_lock left(job->asking_, job->mutex_);
            job->members_.erase(place);
          }};
}

// A member's set_error may call this in turn: that is why the error comes before the lock. One may
// return only after another one has been called, so all are called at once.
void JobState::fail(std::string_view error) noexcept {
  {
    const std::lock_guard lock(error_mutex_);
    if (failed_) return;
    try {
      error_ = error;
    } catch (const std::bad_alloc&) {
      error_ = "aborted";
    }
    failed_ = true;
  }
  const std::lock_guard lock(mutex_);
  std::vector<std::thread> threads;
  for (const Member& member : members_) {
    try {
      threads.emplace_back(member.set_error, error);
    } catch (const std::exception&) {  // the system has no thread left
      member.set_error(error);
    }
  }
  for (std::thread& thread : threads) thread.join();
}

void JobState::abort(int rank, std::string_view reason) noexcept {
  try {
    const std::string text = fmt::format("rank {} aborted the job: {}", rank, reason);
    fail(text);
  } catch (const std::exception&) {  // no memory for the text
    fail("aborted");
  }
}

std::string JobState::error() const {
  const std::lock_guard lock(error_mutex_);
  return error_;
}

void JobState::check() const {
  if (failed_) throw CommError(error());
}

void JobState::propagate() {
  const std::shared_lock asking(asking_);
  std::vector<std::function<std::string()>> errors;
  {
    const std::lock_guard lock(mutex_);
    if (members_.size() < 2) return;
    for (const Member& member : members_) errors.push_back(member.error);
  }
  for (const auto& error : errors) {
    if (failed_) return;
    if (const std::string found = error(); !found.empty()) return fail(found);
  }
}

std::shared_ptr<void> JobState::watch(Look look) {
  constexpr std::chrono::milliseconds kFirst{100};
  std::call_once(watched_, [this] { watcher_ = std::make_unique<Watcher>(); });
  const auto place = watcher_->add(std::move(look));
  watcher_->look_within(kFirst);
  return {nullptr, [job = shared_from_this(), place](void*) {
            if (job->is_this_process()) job->watcher_->remove(place);
          }};
}

void JobState::look_within(Clock::duration time) { watcher_->look_within(time); }

}  // namespace zerorun
