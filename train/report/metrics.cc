#include "train/report/metrics.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/check.h"

namespace zerorun::train {

namespace {

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

void Metrics::begin(int rank, int world_size, const nlohmann::ordered_json& run) {
  write_line(nlohmann::ordered_json{
      {"zerorun_metrics", kMetricsVersion},
      {"rank", rank},
      {"world_size", world_size},
      {"run",
       run}}.dump());
}

void Metrics::write(const StepReport& report, const nlohmann::ordered_json& more) {
  // A gradient that is not finite has no norm.
  const auto norm = [&](double value) {
    return report.skipped ? nlohmann::ordered_json() : nlohmann::ordered_json(value);
  };
  const auto now = std::chrono::system_clock::now();
  const StepTimes& times = report.times;
  nlohmann::ordered_json line = {
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
      {"mfu", report.mfu ? nlohmann::ordered_json(*report.mfu) : nlohmann::ordered_json()},
      {"model_state_bytes", report.model_state_bytes},
      {"peak_rss_bytes", report.peak_rss_bytes},
  };
  if (!more.is_null()) line.update(more);
  write_line(line.dump());
}

void Metrics::finish(uint64_t param_hash) {
  write_line(nlohmann::json{{"param_hash", fmt::format("{:016x}", param_hash)}}.dump());
}

void Metrics::write_line(const std::string& line) {
  file_ << line << std::endl;  // flushes, because a reader may follow the file
  if (!file_) fail<IoError>("cannot write the metrics file {}: is the disk full?", path_);
}

}  // namespace zerorun::train
