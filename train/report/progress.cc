#include "train/report/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/format_bytes.h"

namespace zerorun::train {

namespace {

constexpr int64_t kLines = 20;
constexpr auto kRefresh = std::chrono::milliseconds(200);
constexpr auto kMaxSilence = std::chrono::seconds(10);

std::string rate_text(double rate) {
  if (rate < 10000.0) return fmt::format("{:.0f}", rate);
  return fmt::format("{:.1f}k", rate / 1000.0);
}

std::string duration_text(double seconds) {
  const auto whole = static_cast<int64_t>(std::clamp(std::ceil(seconds), 0.0, 1e9));
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

}  // namespace

std::string progress_line(const StepReport& report, const ProgressOptions& options,
                          double seconds_left) {
  std::string line = fmt::format(
      "step {}/{}  loss {:.4f}  {} tokens/s  memory {} (states {})  ETA {}", report.step,
      options.last_step, report.loss, rate_text(report.tokens_per_s),
      format_bytes(static_cast<size_t>(report.peak_rss_bytes)),
      format_bytes(static_cast<size_t>(report.model_state_bytes)), duration_text(seconds_left));
  if (options.breakdown) {
    line +=
        fmt::format("  ms: step {:.1f}, forward and backward {:.1f}, comm {:.1f}, optimizer {:.1f}",
                    report.times.step_ms, report.times.fwd_bwd_ms, report.times.comm_ms(),
                    report.times.optimizer_ms);
  }
  if (report.skipped) {
    line += fmt::format(
        "  skipped: the gradient is not finite{}",
        report.loss_scale == 1.0 ? "" : fmt::format(" at loss scale {:g}", report.loss_scale));
  }
  return line;
}

Progress::Progress(std::FILE* stream, const ProgressOptions& options)
    : stream_(stream), options_(options) {}

Progress::~Progress() { end_line(); }

bool Progress::is_due(int64_t step) const {
  if (step == options_.last_step || step == options_.first_step + 1) return true;
  if (options_.steps_per_print) return step % std::max<int64_t>(1, *options_.steps_per_print) == 0;
  const auto silence = Clock::now() - shown_;
  if (options_.terminal) return silence >= kRefresh;
  const int64_t every = std::max<int64_t>(1, (options_.last_step - options_.first_step) / kLines);
  return step % every == 0 || silence >= kMaxSilence;
}

void Progress::report(const StepReport& report) {
  if (!is_due(report.step)) return;
  shown_ = Clock::now();
  const double elapsed = std::chrono::duration<double>(shown_ - start_).count();
  const auto done = static_cast<double>(report.step - options_.first_step);
  const double left = elapsed / done * static_cast<double>(options_.last_step - report.step);
  const std::string line = progress_line(report, options_, left);
  // A rewritten line clears the rest of the old one, which may have been longer.
  const char* const format = options_.terminal ? "\r%s\033[K" : "%s\n";
  std::fprintf(stream_, format, line.c_str());
  std::fflush(stream_);
  line_is_open_ = options_.terminal;
}

void Progress::event(const std::string& text) {
  end_line();
  std::fprintf(stream_, "%s\n", text.c_str());
  std::fflush(stream_);
}

void Progress::end_line() {
  if (line_is_open_) std::fputc('\n', stream_);
  line_is_open_ = false;
}

}  // namespace zerorun::train
