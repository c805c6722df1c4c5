#include "config/env.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>

#include "core/check.h"
#include "core/printable.h"

namespace zerorun {

namespace {

constexpr auto kVariables = std::to_array<EnvironmentVariable>({
    {"RANK", "global rank of this process"},
    {"WORLD_SIZE", "number of ranks in the job"},
    {"LOCAL_RANK", "rank among the ranks of this host"},
    {"LOCAL_WORLD_SIZE", "number of ranks on this host"},
    {"MASTER_ADDR", "host on which rank 0 listens for its peers"},
    {"MASTER_PORT", "port on which rank 0 listens for its peers"},
    {"OMP_NUM_THREADS", "threads of one rank; the launcher divides the cores when it is unset"},
    {"CUDA_VISIBLE_DEVICES", "base set of GPUs; --include and --exclude select within it"},
    {"ZERORUN_JOB_SECRET", "shared by the ranks of one job; peers that do not know it are dropped"},
    {"ZERORUN_SHARE_GPUS",
     "1: more ranks than GPUs may run, sharing them; nccl: through NCCL all the same; 0: no; for "
     "tests"},
    {"ZERORUN_STORE_FD",
     "set by the launcher for rank 0: the socket that holds MASTER_PORT for it"},
    {"ZERORUN_COMPAT", "0: the deepspeed module of zerorun is not put in front of programs"},
    {"PATH", "where the launcher looks for programs"},
    {"VIRTUAL_ENV", "the Python environment whose python runs Python programs"},
    {"PYTHONPATH", "extended with the working directory for Python programs"},
    {"HOME", "the user's directory"},
    {"NCCL_LAUNCH_ORDER_IMPLICIT", "of NCCL; set to 1 for jobs with GPUs when it is unset"},
    {"CUDA_DEVICE_MAX_CONNECTIONS", "of CUDA; set to 32 for jobs with GPUs when it is unset"},
    {"TORCHELASTIC_USE_AGENT_STORE", "True: torchrun serves the store at which Python ranks meet"},
});

}  // namespace

std::span<const EnvironmentVariable> environment_variables() { return kVariables; }

void check_in_table(std::string_view name) {
  const auto known = std::find_if(kVariables.begin(), kVariables.end(),
                                  [&](const auto& variable) { return variable.name == name; });
  ZR_CHECK(known != kVariables.end(), "environment variable {} is not in the table", name);
}

std::optional<std::string> read_environment(std::string_view name) {
  check_in_table(name);
  const char* value = std::getenv(std::string(name).c_str());
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

bool is_on(std::string_view value) { return !value.empty() && value != "0"; }

void check_thread_count(std::string_view value) {
  constexpr int kMaxThreads = 4096;
  if (value.empty()) return;
  std::string_view rest = value;
  while (true) {
    const std::string_view part = rest.substr(0, rest.find(','));
    int threads = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), threads);
    if (error != std::errc() || end != part.data() + part.size() || threads < 1 ||
        threads > kMaxThreads) {
      fail<ConfigError>(
          "environment variable OMP_NUM_THREADS='{}': expected a number of threads from 1 to {}",
          value, kMaxThreads);
    }
    if (part.size() == rest.size()) return;
    rest.remove_prefix(part.size() + 1);
  }
}

std::optional<long> read_environment_int(std::string_view name, long low, long high) {
  const std::optional<std::string> text = read_environment(name);
  if (!text) return std::nullopt;
  long value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size() || value < low || value > high) {
    fail<ConfigError>("environment variable {}='{}': expected an integer from {} to {}", name,
                      printable(*text), low, high);
  }
  return value;
}

}  // namespace zerorun
