#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace zerorun {

// Asks CUDA for a thread that must not wait for it. While one thread's call waits for all streams
// (memory that is freed, a kernel that is loaded), calls of others wait, too, as long as a stream
// waits for a peer that has died: whoever would end that wait must go on.
class AskingThread {
 public:
  // Of this process: a forked child, which does not have the thread, destroys nothing.
  static std::shared_ptr<AskingThread> make();

  // True once the thread has called `question`, which must not throw; false if it has not returned
  // after kPatience, or an earlier one has not. Called by one thread at a time.
  bool ask(std::function<void()> question);
  // Waits for the end of a question. Whoever asks no more may then destroy what that used.
  void wait_until_idle();

 private:
  static constexpr std::chrono::seconds kPatience{1};

  AskingThread() : thread_([this] { run(); }) {}
  ~AskingThread();
  void run();

  std::mutex mutex_;  // guards the next two; not held during a question
  std::function<void()> question_;
  bool closing_ = false;
  std::condition_variable changed_;
  std::thread thread_;
};

}  // namespace zerorun
