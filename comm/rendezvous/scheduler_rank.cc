#include "comm/rendezvous/scheduler_rank.h"

#include <array>
#include <limits>
#include <string>
#include <string_view>

#include "comm/rendezvous/slurm.h"
#include "config/env.h"
#include "core/check.h"

namespace zerorun {

namespace {

// The variables of one kind of mpirun.
struct MpiVariables {
  std::string_view rank;
  std::string_view size;
  std::string_view local_rank;
  std::string_view local_size;
};
constexpr auto kMpi = std::to_array<MpiVariables>({
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
     "MV2_COMM_WORLD_LOCAL_SIZE"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"PMIX_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
});

std::optional<int> scheduler_number(std::string_view name, long low) {
  const auto value = read_environment_int(name, low, std::numeric_limits<int>::max());
  return value ? std::optional(static_cast<int>(*value)) : std::nullopt;
}

// The same number from a job's name in all of its processes.
uint16_t port_of_name(std::string_view name) {
  constexpr uint32_t kFirstPort = 15000;  // below the ports that the kernel gives to clients
  constexpr uint32_t kPorts = 15000;
  uint32_t hash = 2166136261U;  // FNV-1a
  for (const char letter : name) hash = (hash ^ static_cast<unsigned char>(letter)) * 16777619U;
  return static_cast<uint16_t>(kFirstPort + hash % kPorts);
}

uint16_t mpi_port(uint16_t standard) {
  for (const char* name : {"PMIX_NAMESPACE", "PMI_JOBID"}) {
    if (const auto job = read_environment(name)) return port_of_name(*job);
  }
  return standard;
}

std::optional<RankInfo> rank_of_slurm() {
  const auto step = slurm_step();
  if (!step || step->tasks == 1) return std::nullopt;
  RankInfo info;
  info.rank = step->task;
  info.world_size = step->tasks;
  info.local_rank = step->local_task;
  const auto node = static_cast<size_t>(step->node);
  if (node < step->tasks_of.size()) {
    info.local_world_size = step->tasks_of[node];
  } else if (step->hosts.size() == 1) {
    info.local_world_size = step->tasks;
  } else {
    fail<ConfigError>(
        "srun has started {} tasks on several hosts, but SLURM_STEP_TASKS_PER_NODE does not say "
        "how many on host {}: set RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE",
        step->tasks, step->node);
  }
  if (step->hosts.size() > 1) info.master_addr = step->hosts.front();
  info.master_port = slurm_port();
  return info;
}

std::optional<RankInfo> rank_of_mpi() {
  for (const MpiVariables& names : kMpi) {
    const auto rank = scheduler_number(names.rank, 0);
    const auto size = scheduler_number(names.size, 1);
    if (!rank || !size || *size == 1) continue;
    auto local_rank = scheduler_number(names.local_rank, 0);
    if (!local_rank) local_rank = scheduler_number("PALS_LOCAL_RANKID", 0);  // Cray's
    auto local_size = scheduler_number(names.local_size, 1);
    if (!local_size) local_size = scheduler_number("LOCAL_WORLD_SIZE", 1);
    if (!local_rank || !local_size) {
      fail<ConfigError>(
          "{}={} of {}={} processes, but {} and {} do not say which of how many on this host: set "
          "RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE, or start the program with zerorun",
          names.rank, *rank, names.size, *size, names.local_rank, names.local_size);
    }
    RankInfo info;
    info.rank = *rank;
    info.world_size = *size;
    info.local_rank = *local_rank;
    info.local_world_size = *local_size;
    if (info.local_world_size < info.world_size && !read_environment("MASTER_ADDR")) {
      fail<ConfigError>(
          "mpirun has started {} of {} processes on this host, and MASTER_ADDR does not say which "
          "host has rank 0: pass it on, as with mpirun -x MASTER_ADDR=$(hostname) ...",
          info.local_world_size, info.world_size);
    }
    info.master_port = mpi_port(info.master_port);
    return info;
  }
  return std::nullopt;
}

}  // namespace

std::optional<RankInfo> rank_from_scheduler() {
  const auto of_slurm = rank_of_slurm();
  return of_slurm ? of_slurm : rank_of_mpi();
}

}  // namespace zerorun
