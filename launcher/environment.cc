#include "launcher/environment.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "config/env.h"
#include "core/check.h"

namespace zerorun {

namespace {

std::string join_paths(std::initializer_list<std::string> paths) {
  std::string joined;
  for (const std::string& path : paths) {
    if (path.empty()) continue;
    joined += (joined.empty() ? "" : ":") + path;
  }
  return joined;
}

// Settings of NVIDIA's libraries that training wants, for a user who has not set them.
constexpr auto kGpuSettings = std::to_array<std::pair<const char*, const char*>>({
    // As comm/device_communicator.cc does, for programs that use PyTorch's communicators before
    // ours.
    {"NCCL_LAUNCH_ORDER_IMPLICIT", "1"},
    // A hardware queue for each stream: with the default of 8, copies wait behind other streams'
    // kernels.
    {"CUDA_DEVICE_MAX_CONNECTIONS", "32"},
});

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

Environment rank_variables(const JobSettings& job, int local_rank, int threads,
                           const Environment& inherited) {
  const HostPlace& place = job.place;
  const int rank = place.first_rank + local_rank;
  const std::string global = std::to_string(rank);
  const std::string local = std::to_string(local_rank);
  const std::string world_size = std::to_string(place.world_size);
  const std::string local_world_size = std::to_string(place.local_world_size);
  const std::string node = std::to_string(place.node_rank);
  const std::string nodes = std::to_string(place.nodes);
  Environment variables = {
      {"RANK", global},
      {"LOCAL_RANK", local},
      {"WORLD_SIZE", world_size},
      {"LOCAL_WORLD_SIZE", local_world_size},
      {"GROUP_RANK", node},
      {"GROUP_WORLD_SIZE", nodes},
      {"NODE_RANK", node},
      {"ROLE_RANK", global},
      {"ROLE_WORLD_SIZE", world_size},
      {"ROLE_NAME", job.run.role},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(job.run.restarts)},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(job.run.max_restarts)},
      {"TORCHELASTIC_RUN_ID", job.run.id},
      // PyTorch's rank 0 serves the store: no launcher of ours does.
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},
      {"LOCAL_SIZE", local_world_size},  // DeepSpeed's names
      {"CROSS_RANK", node},
      {"CROSS_SIZE", nodes},
      {"MASTER_ADDR", job.master_addr},
      {"MASTER_PORT", std::to_string(job.master_port)},
      {"ZERORUN_JOB_SECRET", job.secret},
  };
  if (job.names_gpus) {
    // All of the job's devices, for every rank: programs index them with LOCAL_RANK.
    variables["CUDA_VISIBLE_DEVICES"] = fmt::format("{}", fmt::join(job.gpus, ","));
  }
  if (!job.run.restart_reason.empty()) {
    variables["ZERORUN_RESTART_REASON"] = job.run.restart_reason;
  }
  if (rank == 0) variables["ZERORUN_STORE_FD"] = std::to_string(job.store_fd);
  const std::string given_threads = find_variable(inherited, "OMP_NUM_THREADS").value_or("");
  check_thread_count(given_threads);
  if (given_threads.empty()) variables["OMP_NUM_THREADS"] = std::to_string(threads);
  for (const auto& [name, value] : kGpuSettings) {
    if (!job.gpus.empty() && !find_variable(inherited, name)) variables[name] = value;
  }
  if (job.python) {
    variables["PYTHONPATH"] = join_paths({job.python_path, job.working_directory,
                                          find_variable(inherited, "PYTHONPATH").value_or("")});
    if (!job.command_path.empty()) {
      variables["PATH"] =
          join_paths({job.command_path, find_variable(inherited, "PATH").value_or("")});
    }
    variables.emplace("PYTHONUNBUFFERED", "1");
  }
  for (const auto& [name, value] : job.more) variables[name] = value;
  return variables;
}

Environment rank_environment(const Environment& inherited, const Environment& variables) {
  Environment environment = inherited;
  // A stale TORCHELASTIC_USE_AGENT_STORE makes every rank wait for a store that nobody serves.
  std::erase_if(environment, [](const auto& entry) {
    return entry.first.starts_with("TORCHELASTIC_") || entry.first == "ZERORUN_STORE_FD" ||
           entry.first == "ZERORUN_RESTART_REASON";
  });
  for (const auto& [name, value] : variables) environment[name] = value;
  return environment;
}

std::string make_secret() {
  std::array<unsigned char, 32> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    fail<IoError>("cannot read random bytes: {}", std::strerror(errno));
  }
  return fmt::format("{:02x}", fmt::join(bytes, ""));
}

}  // namespace zerorun
