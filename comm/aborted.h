#pragma once

#include <fmt/format.h>

#include <mutex>
#include <new>
#include <string>
#include <string_view>

#include "zerorun/error.h"

namespace zerorun {

// The error of every call after Communicator::abort, in a job of one rank.
class Aborted {
 public:
  void set(std::string_view reason) noexcept {
    const std::lock_guard lock(mutex_);
    if (!text_.empty()) return;
    try {
      text_ = fmt::format("rank 0 aborted the job: {}", reason);
    } catch (const std::bad_alloc&) {
      text_ = "aborted";
    }
  }
  void check() const {
    const std::lock_guard lock(mutex_);
    if (!text_.empty()) throw CommError(text_);
  }

 private:
  mutable std::mutex mutex_;
  std::string text_;
};

}  // namespace zerorun
