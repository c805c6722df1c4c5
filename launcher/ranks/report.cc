#include "launcher/ranks/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "core/joined.h"
#include "launcher/environment.h"
#include "launcher/ranks/process.h"
#include "os/text_file.h"

namespace zerorun {

namespace {

constexpr uint64_t kMaxErrorFile = uint64_t{1} << 20;

std::string text_at(const nlohmann::json& object, const char* name) {
  if (!object.is_object()) return {};
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

struct Symptom {
  std::string_view text;
  std::string_view cause;
};

// Lines that programs print shortly before they end, and their remedies.
constexpr auto kSymptoms = std::to_array<Symptom>({
    {"unrecognized arguments: --local_rank",
     "the program does not take --local_rank=N; start it with zerorun --local_rank never"},
    {"No CUDA GPUs are available", "a GPU is missing: none is visible to this rank"},
    {"no CUDA-capable device is detected", "a GPU is missing: none is visible to this rank"},
    {"invalid device ordinal",
     "a GPU is missing: the program uses one outside of the selected devices"},
    {"CUDA out of memory",
     "the GPU's memory is full: smaller micro-batch, higher ZeRO stage, or offload"},
    {"Address already in use",
     "another program took the port; leave --master_port out for a free one"},
    {"No space left on device", "a disk or /dev/shm is full"},
});

std::string cause_of_signal(int signal, const RankFailure& failure) {
  switch (signal) {
    case SIGKILL:
      return failure.oom_kill ? "out of memory: the kernel's OOM killer ended a process of this job"
                              : "someone sent kill -9, or a scheduler's limit was reached; the "
                                "kernel reports no out-of-memory kill";
    case SIGBUS:
      return failure.shm_available
                 ? fmt::format(
                       "shared memory or a mapped file ran out of space: /dev/shm has {} MiB left",
                       *failure.shm_available >> 20)
                 : "shared memory or a mapped file ran out of space";
    case SIGSEGV:
      return "a bug in native code (segmentation fault), or a tensor that shares the memory of a "
             "gathered parameter (stage 3) and was read after the gather: clone() it before";
    case SIGILL:
      return "the program was built for another CPU (illegal instruction)";
    case SIGTERM:
    case SIGINT:
      return "someone outside of the job ended this rank";
    default:
      return {};
  }
}

std::string describe_end(int status) {
  if (WIFSIGNALED(status)) {
    return fmt::format("was killed by {} (signal {})", signal_name(WTERMSIG(status)),
                       WTERMSIG(status));
  }
  return fmt::format("failed with exit code {}", WEXITSTATUS(status));
}

// "rank 1 (pid 7 on host-b) is stopped".
std::string describe_stopped(const RankFailure& failure) {
  return joined(failure.stopped, ", ", [&](const StoppedRank& one) {
    return fmt::format("rank {} (pid {} on {})", one.rank, one.pid, failure.host);
  });
}

bool said(const RankFailure& failure, const std::string& text) {
  return std::ranges::any_of(failure.last_lines, [&text](const std::string& line) {
    return line.find(text) != std::string::npos;
  });
}

}  // namespace

std::optional<ErrorRecord> read_error_record(const std::string& path) {
  std::string text;
  if (path.empty() || try_read_text(path, kMaxErrorFile, text) != 0) return std::nullopt;
  const nlohmann::json root = nlohmann::json::parse(text, nullptr, false);
  if (!root.is_object() || !root.contains("message")) return std::nullopt;
  // {"message": {"message": ..., "extraInfo": {"py_callstack": ...}}}, or the text itself.
  const nlohmann::json& message = root["message"];
  ErrorRecord record;
  record.message = message.is_string() ? message.get<std::string>() : text_at(message, "message");
  if (message.is_object() && message.contains("extraInfo")) {
    record.traceback = text_at(message["extraInfo"], "py_callstack");
  }
  if (record.message.empty()) return std::nullopt;
  record.message = record.message.substr(0, record.message.find('\n'));
  return record;
}

int exit_code_of(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

std::string likely_cause(const RankFailure& failure) {
  if (said(failure, "No module named 'zerorun'") && !failure.no_package.empty()) {
    return failure.no_package;
  }
  for (const Symptom& symptom : kSymptoms) {
    for (const std::string& line : failure.last_lines) {
      if (line.find(symptom.text) != std::string::npos) return std::string(symptom.cause);
    }
  }
  return WIFSIGNALED(failure.status) ? cause_of_signal(WTERMSIG(failure.status), failure)
                                     : std::string();
}

std::string summarize_failure(const RankFailure& failure) {
  if (!failure.stopped.empty()) {
    return fmt::format("{} was stopped, and rank {} did not get further", describe_stopped(failure),
                       failure.rank);
  }
  return fmt::format("rank {} on {} {}", failure.rank, failure.host, describe_end(failure.status));
}

std::string describe_failure(const RankFailure& failure) {
  std::string text;
  if (failure.ranks > 1 && !failure.lines_in_view && !failure.last_lines.empty()) {
    text += fmt::format("[zerorun] last lines of rank {}:\n", failure.rank);
    for (const std::string& line : failure.last_lines) text += fmt::format("  {}\n", line);
  }
  if (failure.exception && !said(failure, failure.exception->message)) {
    text += fmt::format("[zerorun] exception of rank {}: {}\n", failure.rank,
                        failure.exception->message);
    if (failure.last_lines.empty()) text += fmt::format("{}\n", failure.exception->traceback);
  }
  if (!failure.stopped.empty()) {
    text += fmt::format(
        "[zerorun] error: {} was stopped (SIGSTOP); the others waited for it, until rank {} of {} "
        "{}\n",
        describe_stopped(failure), failure.rank, failure.ranks, describe_end(failure.status));
    return text;
  }
  text += fmt::format("[zerorun] error: rank {} of {} (pid {} on {}) {}\n", failure.rank,
                      failure.ranks, failure.pid, failure.host, describe_end(failure.status));
  const std::string cause = likely_cause(failure);
  if (!cause.empty()) text += fmt::format("[zerorun] likely cause: {}\n", cause);
  return text;
}

std::string choose_temporary_path() {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::temp_directory_path(error);
  if (error) return {};
  constexpr size_t kLetters = 16;
  return (folder / ("zerorun_" + make_secret().substr(0, kLetters))).string();
}

std::shared_ptr<void> make_error_folder(const std::string& path) {
  std::error_code error;
  // If somebody else has made it, it is not ours to remove.
  if (path.empty() || !std::filesystem::create_directory(path, error)) return nullptr;
  std::filesystem::permissions(path, std::filesystem::perms::owner_all, error);
  return {nullptr, [path](void*) {
            std::error_code ignored;
            std::filesystem::remove_all(path, ignored);
          }};
}

}  // namespace zerorun
