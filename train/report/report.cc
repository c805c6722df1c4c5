#include "train/report/report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/check.h"
#include "core/format_bytes.h"

namespace zerorun::train {

using OrderedJson = nlohmann::ordered_json;

namespace {

OrderedJson milliseconds(double seconds) {
  return std::isnan(seconds) ? OrderedJson() : OrderedJson(1e3 * seconds);
}

void add_split(OrderedJson& line, const std::string& name,
               const std::optional<SplitSeconds>& split) {
  line[name + "_hidden_ms"] = split ? milliseconds(split->hidden) : OrderedJson();
}

void add_stragglers(OrderedJson& line, const StragglerReport& report) {
  OrderedJson& shares = line["step_shares"] = {{"waited", report.own.waited}};
  for (int part = 0; part < kStepParts; ++part) {
    shares[name_of(static_cast<StepPart>(part))] = report.own.parts[static_cast<size_t>(part)];
  }
  const auto& found = report.found;
  if (!found) return;
  line["straggler"] = {{"rank", found->rank},
                       {"host", found->host},
                       {"share", found->share},
                       {"cause", name_of(found->cause)},
                       {"text", found->text()}};
}

// Returns the resident memory, including shared memory, as for PyTorch programs.
int64_t rss_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t all = 0;
  int64_t resident = 0;
  statm >> all >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

// Returns the shortest decimal number that converts back to this float.
double shortest(float value) { return std::stod(fmt::format("{}", value)); }

constexpr int kMetricsVersion = 1;  // version of the file format

// True if the file ends within a line, as a killed run may have left it.
bool ends_within_line(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file || file.tellg() <= 0) return false;
  file.seekg(-1, std::ios::end);
  return file.get() != '\n';
}

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

std::string metrics_path(const std::string& path, int rank) {
  namespace fs = std::filesystem;
  if (rank == 0) return path;
  std::error_code error;
  if (fs::exists(path, error) && !fs::is_regular_file(path, error)) return "";
  const fs::path given(path);
  return given.parent_path() /
         fmt::format("{}.rank{}{}", given.stem().string(), rank, given.extension().string());
}

Metrics::Metrics(const std::string& path, Mode mode)
    : path_(path), file_(path, mode == Mode::append ? std::ios::app : std::ios::trunc) {
  if (!file_) fail<IoError>("cannot write the metrics file {}: {}", path_, std::strerror(errno));
  if (mode == Mode::append && ends_within_line(path_)) file_ << '\n';
}

void Metrics::begin(int rank, int world_size, const OrderedJson& run) {
  const OrderedJson line = {{"zerorun_metrics", kMetricsVersion},
                            {"rank", rank},
                            {"world_size", world_size},
                            {"run", run}};
  write_line(line);
}

void Metrics::write(const StepReport& report, const OrderedJson& more) {
  // A gradient that is not finite has no norm.
  const auto norm = [&](double value) {
    return report.skipped ? OrderedJson() : OrderedJson(value);
  };
  const auto now = std::chrono::system_clock::now();
  const StepTimes& times = report.times;
  OrderedJson line = {
      {"step", report.step},
      {"samples", report.samples},
      {"time_s", std::chrono::duration<double>(now.time_since_epoch()).count()},
      {"loss", report.loss},
      {"lr", shortest(report.lr)},
      {"grad_norm", norm(report.grad_norm)},
      {"clip_factor", report.clip_factor},
      {"clipped_grad_norm", norm(report.clipped_grad_norm())},
      {"loss_scale", report.loss_scale},
      {"skipped", report.skipped},
      {"skipped_steps", report.skipped_steps},
      {"step_ms", times.step_ms},
      {"data_ms", times.data_ms},
      {"fwd_bwd_ms", times.fwd_bwd_ms},
      {"comm_ms", times.comm_ms()},
      {"reduce_ms", times.reduce_ms},
      {"gather_ms", times.gather_ms},
      {"optimizer_ms", times.optimizer_ms},
      {"tokens_per_s", report.tokens_per_s},
      {"mfu", report.mfu ? OrderedJson(*report.mfu) : OrderedJson()},
      {"model_state_bytes", report.model_state_bytes},
      {"peak_rss_bytes", report.peak_rss_bytes},
  };
  if (!more.is_null()) line.update(more);
  write_line(line);
}

void Metrics::finish(uint64_t param_hash) {
  write_line({{"param_hash", fmt::format("{:016x}", param_hash)}});
}

void Metrics::write_line(const OrderedJson& line) {
  // Paths may be no UTF-8. endl flushes, because a reader may follow the file.
  file_ << line.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) << std::endl;
  if (!file_) fail<IoError>("cannot write the metrics file {}: is the disk full?", path_);
}

RankFigures::RankFigures(Engine& engine, Communicator& comm)
    : engine_(engine), comm_(comm), work_(engine, comm), counted_(comm.stats()) {}

OrderedJson RankFigures::take() {
  const StepWork work = work_.take();
  OrderedJson line;
  add_split(line, "reduce", work.reductions);
  add_split(line, "gather", work.gathers);
  if (work.offload && work.offload->any()) {
    line["offload_ms"] = milliseconds(work.offload->exposed);
    add_split(line, "offload", work.offload);
  }
  line["collectives"] = take_collectives();
  add_stragglers(line, engine_.stragglers());
  for (int i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    const MemoryUse use = engine_.device().memory_use(category);
    if (use.peak_bytes == 0) continue;
    line["memory"][name_of(category)] = use.live_bytes;
    line["memory_peak"][name_of(category)] = use.peak_bytes;
  }
  line["rss_bytes"] = rss_bytes();
  return line;
}

OrderedJson RankFigures::take_collectives() {
  const CommStats before = std::exchange(counted_, comm_.stats());
  const auto earlier_s = std::exchange(seconds_, work_.collective_seconds());
  OrderedJson found = OrderedJson::object();
  for (int i = 0; i < kCollectives; ++i) {
    const auto op = static_cast<Collective>(i);
    const int64_t calls = counted_[op].calls - before[op].calls;
    if (calls == 0) continue;
    const auto at = static_cast<size_t>(i);
    found[name_of(op)] = {calls, counted_[op].bytes - before[op].bytes,
                          milliseconds(seconds_[at] - earlier_s[at])};
  }
  return found;
}

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
