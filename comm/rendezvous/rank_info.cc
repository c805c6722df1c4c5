#include <limits>
#include <optional>
#include <string>

#include "config/env.h"
#include "core/check.h"
#include "zerorun/communicator.h"

namespace zerorun {

namespace {

std::optional<int> read_int(std::string_view name, long low, long high) {
  const std::optional<long> value = read_environment_int(name, low, high);
  if (!value) return std::nullopt;
  return static_cast<int>(*value);
}

void read_local_rank(RankInfo& info) {
  constexpr long kMax = std::numeric_limits<int>::max();
  const std::optional<int> local_rank = read_int("LOCAL_RANK", 0, kMax);
  const std::optional<int> local_world_size = read_int("LOCAL_WORLD_SIZE", 1, kMax);
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

}  // namespace

RankInfo rank_from_environment() {
  constexpr long kMax = std::numeric_limits<int>::max();
  RankInfo info;
  check_thread_count(read_environment("OMP_NUM_THREADS").value_or(""));
  const std::optional<int> rank = read_int("RANK", 0, kMax);
  const std::optional<int> world_size = read_int("WORLD_SIZE", 1, kMax);
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
  read_local_rank(info);
  info.master_addr = read_environment("MASTER_ADDR").value_or(info.master_addr);
  constexpr long kMaxPort = std::numeric_limits<uint16_t>::max();
  info.master_port =
      static_cast<uint16_t>(read_int("MASTER_PORT", 1, kMaxPort).value_or(info.master_port));
  info.secret = read_environment("ZERORUN_JOB_SECRET").value_or("");
  return info;
}

}  // namespace zerorun
