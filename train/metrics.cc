#include "train/metrics.h"

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/check.h"

namespace zerorun::train {

namespace {

// The shortest decimal number that reads back as this float.
double shortest(float value) { return std::stod(fmt::format("{}", value)); }

}  // namespace

Metrics::Metrics(const std::string& path, Mode mode)
    : path_(path), file_(path, mode == Mode::append ? std::ios::app : std::ios::trunc) {
  if (!file_) fail<IoError>("cannot write the metrics file {}: {}", path_, std::strerror(errno));
}

void Metrics::write(const StepReport& report) {
  // A gradient that is not finite has no norm.
  const auto norm = [&](double value) {
    return report.skipped ? nlohmann::ordered_json() : nlohmann::ordered_json(value);
  };
  const nlohmann::ordered_json line = {
      {"step", report.step},
      {"loss", report.loss},
      {"lr", shortest(report.lr)},
      {"grad_norm", norm(report.grad_norm)},
      {"clipped_grad_norm", norm(report.clipped_grad_norm)},
      {"loss_scale", report.loss_scale},
      {"skipped", report.skipped},
      {"step_ms", report.step_ms},
      {"fwd_bwd_ms", report.fwd_bwd_ms},
      {"comm_ms", report.comm_ms},
      {"optimizer_ms", report.optimizer_ms},
      {"tokens_per_s", report.tokens_per_s},
      {"mfu", report.mfu ? nlohmann::ordered_json(*report.mfu) : nlohmann::ordered_json()},
      {"model_state_bytes", report.model_state_bytes},
      {"peak_rss_bytes", report.peak_rss_bytes},
  };
  write_line(line.dump());
}

void Metrics::finish(uint64_t param_hash) {
  write_line(nlohmann::json{{"param_hash", fmt::format("{:016x}", param_hash)}}.dump());
}

void Metrics::write_line(const std::string& line) {
  file_ << line << std::endl;  // a reader follows the file while it grows
  if (!file_) fail<IoError>("cannot write the metrics file {}: is the disk full?", path_);
}

}  // namespace zerorun::train
