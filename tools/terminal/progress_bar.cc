#include "tools/terminal/progress_bar.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "core/format_bytes.h"

namespace zerorun {

ProgressBar::ProgressBar(std::string what, uint64_t total, std::FILE* file,
                         std::chrono::milliseconds after)
    : what_(std::move(what)),
      total_(std::max<uint64_t>(total, 1)),
      file_(file),
      is_terminal_(::isatty(::fileno(file)) == 1),
      next_(std::chrono::steady_clock::now() + after) {}

ProgressBar::~ProgressBar() {
  if (!is_drawn_) return;
  std::fputs("\r\033[K", file_);
  std::fflush(file_);
}

void ProgressBar::add(uint64_t nbytes) {
  constexpr int kWidth = 30;
  constexpr std::chrono::milliseconds kEvery{100};
  done_ = std::min(done_ + nbytes, total_);
  const auto now = std::chrono::steady_clock::now();
  if (!is_terminal_ || now < next_) return;
  next_ = now + kEvery;
  is_drawn_ = true;
  const double part = static_cast<double>(done_) / static_cast<double>(total_);
  const auto filled = static_cast<size_t>(part * kWidth);
  fmt::print(file_, "\r{} [{:<{}}] {:3.0f} % of {}\033[K", what_, std::string(filled, '#'), kWidth,
             100 * part, format_bytes(total_));
  std::fflush(file_);
}

}  // namespace zerorun
