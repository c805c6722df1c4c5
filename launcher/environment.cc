#include "launcher/environment.h"

#include <fmt/ranges.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "config/env.h"
#include "core/check.h"
#include "core/printable.h"
#include "launcher/words.h"
#include "os/text_file.h"

namespace zerorun {

namespace {

constexpr uint64_t kMaxEnvironmentFile = uint64_t{1} << 20;

// The first four are DeepSpeed's.
constexpr auto kPassedOn = std::to_array<std::string_view>(
    {"MLFLOW", "PYTHON", "MV2", "UCX", "NCCL_", "GLOO_", "OMP_", "KMP_", "MKL_", "CUDA_", "TORCH",
     "PYTORCH_", "HF_", "TRANSFORMERS_", "ZERORUN_", "ACCELERATE_"});
constexpr auto kPlaces =
    std::to_array<std::string_view>({"PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX"});
constexpr auto kOwn = std::to_array<std::string_view>(
    {"CUDA_VISIBLE_DEVICES", "ZERORUN_STORE_FD", "ZERORUN_JOB_SECRET", "OMP_NUM_THREADS"});

bool is_passed_on(std::string_view name) {
  if (std::ranges::find(kPlaces, name) != kPlaces.end()) return true;
  if (std::ranges::find(kOwn, name) != kOwn.end()) return false;
  if (name.starts_with("TORCHELASTIC_")) return false;
  for (const char* secret : {"TOKEN", "SECRET", "PASSWORD", "_KEY"}) {
    if (name.find(secret) != std::string_view::npos) return false;
  }
  return std::ranges::any_of(kPassedOn,
                             [name](std::string_view prefix) { return name.starts_with(prefix); });
}

bool is_variable_name(std::string_view name) {
  constexpr std::string_view kLetters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
  return !name.empty() && (name.front() < '0' || name.front() > '9') &&
         name.find_first_not_of(kLetters) == std::string_view::npos;
}

void add_file(const std::filesystem::path& path, Environment& variables) {
  std::string text;
  const int error = try_read_text(path, kMaxEnvironmentFile, text);
  if (error == ENOENT || error == ENOTDIR) return;
  if (error != 0) fail<ConfigError>("{}: {}", path.string(), std::strerror(error));
  for (auto& [name, value] : parse_environment_file(text, path.string())) variables[name] = value;
}

}  // namespace

std::optional<std::string> find_variable(const Environment& environment, const std::string& name) {
  check_in_table(name);
  const auto entry = environment.find(name);
  if (entry == environment.end()) return std::nullopt;
  return entry->second;
}

std::vector<std::string> environment_block(const Environment& environment) {
  std::vector<std::string> block;
  block.reserve(environment.size());
  for (const auto& [name, value] : environment) block.push_back(fmt::format("{}={}", name, value));
  return block;
}

std::string make_secret() {
  std::array<unsigned char, 32> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    fail<IoError>("cannot read random bytes: {}", std::strerror(errno));
  }
  return fmt::format("{:02x}", fmt::join(bytes, ""));
}

Environment parse_environment_file(std::string_view text, const std::string& name) {
  Environment variables;
  size_t number = 0;
  for (std::string_view line : split(text, '\n')) {
    ++number;
    line = trim(line);
    if (line.empty() || line.front() == '#') continue;
    constexpr std::string_view kExport = "export ";
    if (line.starts_with(kExport)) line = trim(line.substr(kExport.size()));
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos || !is_variable_name(line.substr(0, equals))) {
      fail<ConfigError>("{}:{}: expected NAME=VALUE, got '{}'", name, number, printable(line));
    }
    std::string_view value = line.substr(equals + 1);
    const bool quoted = value.size() > 1 && (value.front() == '"' || value.front() == '\'') &&
                        value.back() == value.front();
    if (quoted) value = value.substr(1, value.size() - 2);
    if (value.find('\0') != std::string_view::npos) {
      fail<ConfigError>("{}:{}: the value has a zero byte", name, number);
    }
    variables[std::string(line.substr(0, equals))] = value;
  }
  return variables;
}

Environment exported_variables(const Environment& environment,
                               const std::vector<std::string>& names) {
  Environment exported;
  for (const auto& [name, value] : environment) {
    if (is_passed_on(name)) exported[name] = value;
  }
  for (const std::string& name : names) {
    const auto found = environment.find(name);
    if (found == environment.end()) fail<ConfigError>("--export {}: the variable is not set", name);
    exported[name] = found->second;
  }
  const std::string file = find_variable(environment, "DS_ENV_FILE").value_or(".deepspeed_env");
  const std::string home = find_variable(environment, "HOME").value_or("");
  if (!home.empty()) add_file(std::filesystem::path(home) / file, exported);
  std::error_code error;
  const std::filesystem::path here = std::filesystem::current_path(error);
  if (!error && here != home) add_file(here / file, exported);
  return exported;
}

}  // namespace zerorun
