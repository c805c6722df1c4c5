#include <limits>
#include <optional>
#include <string>

#include "comm/rendezvous/scheduler_rank.h"
#include "config/env.h"
#include "core/check.h"
#include "os/socket.h"
#include "zerorun/communicator.h"

namespace zerorun {

namespace {

std::optional<int> read_int(std::string_view name, long low, long high) {
  const std::optional<long> value = read_environment_int(name, low, high);
  if (!value) return std::nullopt;
  return static_cast<int>(*value);
}

constexpr long kMaxRank = std::numeric_limits<int>::max();

// The ranks on this host, as torchrun, DeepSpeed's launcher or Kubernetes' PyTorchJob say.
std::optional<int> given_local_world_size() {
  std::optional<int> size = read_int("LOCAL_WORLD_SIZE", 1, kMaxRank);
  if (!size) size = read_int("LOCAL_SIZE", 1, kMaxRank);
  const std::string per_pod = read_environment("PET_NPROC_PER_NODE").value_or("");
  const bool is_number = per_pod.find_first_not_of("0123456789") == std::string::npos;
  if (!size && !per_pod.empty() && is_number) size = read_int("PET_NPROC_PER_NODE", 1, kMaxRank);
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
  std::optional<int> local_rank = read_int("LOCAL_RANK", 0, kMaxRank);
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

RankInfo rank_from_environment() {
  RankInfo info;
  check_thread_count(read_environment("OMP_NUM_THREADS").value_or(""));
  const std::optional<int> rank = read_int("RANK", 0, kMaxRank);
  const std::optional<int> world_size = read_int("WORLD_SIZE", 1, kMaxRank);
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
