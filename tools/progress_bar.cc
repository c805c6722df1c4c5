#include "tools/progress_bar.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "core/format_bytes.h"

namespace zerorun {

ProgressBar::ProgressBar(std::string what, uint64_t total)
    : what_(std::move(what)),
      total_(std::max<uint64_t>(total, 1)),
      is_shown_(::isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() {
  if (is_shown_) std::fputs("\r\033[K", stderr);
}

void ProgressBar::add(uint64_t nbytes) {
  constexpr int kWidth = 30;
  constexpr std::chrono::milliseconds kEvery{100};
  done_ = std::min(done_ + nbytes, total_);
  const auto now = std::chrono::steady_clock::now();
  if (!is_shown_ || now - shown_ < kEvery) return;
  shown_ = now;
  const double part = static_cast<double>(done_) / static_cast<double>(total_);
  const auto filled = static_cast<size_t>(part * kWidth);
  fmt::print(stderr, "\r{} [{:<{}}] {:3.0f} % of {}\033[K", what_, std::string(filled, '#'), kWidth,
             100 * part, format_bytes(total_));
  std::fflush(stderr);
}

}  // namespace zerorun
