#include "comm/nccl/asking_thread.h"

#include <unistd.h>

#include <utility>

namespace zerorun {

std::shared_ptr<AskingThread> AskingThread::make() {
  return {new AskingThread, [process = getpid()](AskingThread* thread) {
            if (getpid() == process) delete thread;
          }};
}

AskingThread::~AskingThread() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool AskingThread::ask(std::function<void()> question) {
  std::unique_lock lock(mutex_);
  if (question_) return false;
  question_ = std::move(question);
  changed_.notify_all();
  return changed_.wait_for(lock, kPatience, [this] { return !question_; });
}

void AskingThread::wait_until_idle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !question_; });
}

void AskingThread::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return closing_ || question_; });
    if (!question_) return;
    lock.unlock();
    question_();
    lock.lock();
    question_ = nullptr;
    changed_.notify_all();
  }
}

}  // namespace zerorun
