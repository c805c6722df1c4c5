#pragma once

#include <fmt/format.h>

#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "comm/family.h"
#include "zerorun/error.h"

namespace zerorun {

// The error state of one rank's communicator. After an abort of this communicator, or of another
// one in its family (see comm/family.h), check() throws the same CommError on every call. Any
// thread may call it.
class Aborted {
 public:
  // `rank`: this rank's number in the job, for the text of the error.
  Aborted(int rank, std::shared_ptr<Family> family) : rank_(rank), family_(std::move(family)) {}

  void abort(std::string_view reason) noexcept {
    try {
      const std::string text = fmt::format("rank {} aborted the job: {}", rank_, reason);
      fail(text);
      family_->fail(text);
    } catch (const std::bad_alloc&) {
      fail("aborted");
    }
  }
  void fail(std::string_view error) noexcept {
    const std::lock_guard lock(mutex_);
    if (!text_.empty()) return;
    try {
      text_ = error;
    } catch (const std::bad_alloc&) {
      text_ = "aborted";
    }
  }
  std::string error() const {
    const std::lock_guard lock(mutex_);
    return text_;
  }
  void check() const {
    const std::lock_guard lock(mutex_);
    if (!text_.empty()) throw CommError(text_);
  }

 private:
  const int rank_;
  const std::shared_ptr<Family> family_;
  mutable std::mutex mutex_;
  std::string text_;
};

}  // namespace zerorun
