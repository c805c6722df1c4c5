#include <array>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "comm/rendezvous/slurm.h"
#include "config/env.h"
#include "core/check.h"
#include "os/socket.h"
#include "zerorun/communicator.h"

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

// The same number from a job's name in all of its processes.
uint16_t port_of_name(std::string_view name) {
  uint32_t hash = 2166136261U;  // FNV-1a
  for (const char letter : name) hash = (hash ^ static_cast<unsigned char>(letter)) * 16777619U;
  return job_port(hash);
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
    const auto rank = read_int(names.rank);
    const auto size = read_int(names.size, 1);
    if (!rank || !size || *size == 1) continue;
    auto local_rank = read_int(names.local_rank);
    if (!local_rank) local_rank = read_int("PALS_LOCAL_RANKID");  // Cray's
    auto local_size = read_int(names.local_size, 1);
    if (!local_size) local_size = read_int("LOCAL_WORLD_SIZE", 1);
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

// The rank of this process if a scheduler started it without zerorun's launcher: srun, or mpirun of
// Open MPI, MVAPICH, MPICH, Intel MPI or Cray; nullopt otherwise. MASTER_ADDR and MASTER_PORT, if
// set, are where rank 0 listens. Otherwise it listens on the first host of srun's step, or on this
// host if all ranks are on it, at a port computed from the job's number. Throws ConfigError if the
// variables are not sufficient.
std::optional<RankInfo> rank_from_scheduler() {
  const auto of_slurm = rank_of_slurm();
  return of_slurm ? of_slurm : rank_of_mpi();
}

// The ranks on this host, as torchrun, DeepSpeed's launcher or Kubernetes' PyTorchJob say.
std::optional<int> given_local_world_size() {
  std::optional<int> size = read_int("LOCAL_WORLD_SIZE", 1);
  if (!size) size = read_int("LOCAL_SIZE", 1);
  const std::string per_pod = read_environment("PET_NPROC_PER_NODE").value_or("");
  const bool is_number = per_pod.find_first_not_of("0123456789") == std::string::npos;
  if (!size && !per_pod.empty() && is_number) size = read_int("PET_NPROC_PER_NODE", 1);
  return size;
}

// True when rank 0 listens on another machine than this one.
bool is_elsewhere(const std::string& master) {
  if (master.empty()) return false;
  try {
    reserve_port(master, 0);
    return false;
  } catch (const CommError&) {
    return true;
  }
}

void read_local_rank(RankInfo& info) {
  std::optional<int> local_rank = read_int("LOCAL_RANK");
  const std::optional<int> local_world_size = given_local_world_size();
  // Ranks are numbered host by host, and hosts of a PyTorchJob have equally many.
  if (!local_rank && read_environment("PET_NPROC_PER_NODE") && local_world_size) {
    local_rank = info.rank % *local_world_size;
  }
  if (!local_rank && !local_world_size && is_elsewhere(info.master_addr)) {
    fail<ConfigError>(
        "MASTER_ADDR={} is another host, so ranks run on several, but LOCAL_RANK and "
        "LOCAL_WORLD_SIZE are not set: set them to this rank's number on its host, and to the "
        "number of ranks there",
        info.master_addr);
  }
  if (!local_world_size && local_rank && *local_rank != info.rank) {
    fail<ConfigError>(
        "LOCAL_RANK={} differs from RANK={}, so ranks run on several hosts, but LOCAL_WORLD_SIZE "
        "is not set: set it to the number of ranks on this host",
        *local_rank, info.rank);
  }
  info.local_world_size = local_world_size.value_or(info.world_size);
  if (info.local_world_size > info.world_size) {
    fail<ConfigError>("LOCAL_WORLD_SIZE={} is larger than WORLD_SIZE={}", info.local_world_size,
                      info.world_size);
  }
  if (!local_rank && info.local_world_size != info.world_size) {
    fail<ConfigError>(
        "LOCAL_WORLD_SIZE={} of WORLD_SIZE={} ranks run here, but LOCAL_RANK is not set",
        info.local_world_size, info.world_size);
  }
  info.local_rank = local_rank.value_or(info.rank);
  if (info.local_rank >= info.local_world_size) {
    fail<ConfigError>("LOCAL_RANK={} is not below LOCAL_WORLD_SIZE={}", info.local_rank,
                      info.local_world_size);
  }
  if (info.local_rank > info.rank) {
    fail<ConfigError>("LOCAL_RANK={} is larger than RANK={}", info.local_rank, info.rank);
  }
}

// Completes `info` with the place where the ranks meet.
void read_meeting(RankInfo& info) {
  constexpr long kMaxPort = std::numeric_limits<uint16_t>::max();
  info.master_addr = read_environment("MASTER_ADDR").value_or(info.master_addr);
  info.master_port =
      static_cast<uint16_t>(read_int("MASTER_PORT", 1, kMaxPort).value_or(info.master_port));
  // torchrun itself listens there: ranks that do not use its store meet on the next port.
  if (read_environment("TORCHELASTIC_USE_AGENT_STORE") == "True") {
    info.master_port =
        static_cast<uint16_t>(info.master_port + (info.master_port < kMaxPort ? 1 : -1));
  }
  info.secret = read_environment("ZERORUN_JOB_SECRET").value_or("");
}

}  // namespace

std::optional<int> read_int(std::string_view name, long low, long high) {
  const std::optional<long> value = read_environment_int(name, low, high);
  if (!value) return std::nullopt;
  return static_cast<int>(*value);
}

RankInfo rank_from_environment() {
  RankInfo info;
  check_thread_count(read_environment("OMP_NUM_THREADS").value_or(""));
  const std::optional<int> rank = read_int("RANK");
  const std::optional<int> world_size = read_int("WORLD_SIZE", 1);
  if (!rank) {
    if (const auto scheduled = rank_from_scheduler()) {
      if (world_size.value_or(scheduled->world_size) != scheduled->world_size) {
        fail<ConfigError>("WORLD_SIZE={}, but the scheduler has started {} processes", *world_size,
                          scheduled->world_size);
      }
      info = *scheduled;
      read_meeting(info);
      return info;
    }
  }
  if (rank.has_value() != world_size.has_value()) {
    fail<ConfigError>("{} is set but {} is not: set both, or neither for a job of one rank",
                      rank ? "RANK" : "WORLD_SIZE", rank ? "WORLD_SIZE" : "RANK");
  }
  if (!rank) return info;
  info.rank = *rank;
  info.world_size = *world_size;
  if (info.rank >= info.world_size) {
    fail<ConfigError>("RANK={} is not below WORLD_SIZE={}", info.rank, info.world_size);
  }
  read_meeting(info);
  read_local_rank(info);
  return info;
}

}  // namespace zerorun
