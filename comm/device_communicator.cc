#include "comm/device_communicator.h"

#include <map>

#include "comm/nccl/communicator.h"
#include "comm/waiting.h"
#include "config/env.h"
#include "core/check.h"
#include "device/cuda_backend.h"
#include "device/plugin.h"

namespace zerorun {

namespace {

// Gathers and reductions have communicators of their own, and PyTorch has more. Two that overlap,
// in another order on another rank, could wait for each other. NCCL reads the variable when it
// launches its first collective.
const NcclBackend& open_nccl_backend() {
  default_environment("NCCL_LAUNCH_ORDER_IMPLICIT", "1");
  return plugin_entry<NcclBackend>(open_plugin(kCudaLibrary), kNcclBackendEntry);
}

constexpr const char* kNone = "none";

// Tells all ranks alike which two of them have the same GPU, as "0 and 1", or kNone: rank 0 looks.
// If there are two, rank 0 returns after all have read it: it then fails, and its store with it.
std::string ranks_with_one_device(const GroupOptions& options, const std::string& mine) {
  const auto seen = [&](int rank) { return fmt::format("{}/device/seen/{}", options.name, rank); };
  std::string found = kNone;
  std::map<std::string, int> owners;
  const auto take = [&](const std::string& device) {
    const auto rank = static_cast<int>(owners.size());
    const auto [owner, is_first] = owners.emplace(device, rank);
    if (!is_first) found = fmt::format("{} and {}", owner->second, rank);
    return is_first;
  };
  answer_all(options, options.name + "/device", mine, "to come with a GPU", found, take);
  if (options.rank > 0 && found != kNone) options.store->set(seen(options.rank), "");
  for (int rank = 1; options.rank == 0 && found != kNone && rank < options.world_size; ++rank) {
    wait_for_key(options, seen(rank), [&] {
      return fmt::format("rank {} to come, or to read which GPUs are shared", rank);
    });
  }
  return found;
}

}  // namespace

std::shared_ptr<Communicator> make_device_communicator(const CommunicatorOptions& options) {
  if (options.world_size > 1) {
    ZR_CHECK(options.store != nullptr, "{} ranks need a store to find each other",
             options.world_size);
    const std::string ranks = ranks_with_one_device(
        GroupOptions(options), open_cuda_backend().identity_of(*options.device));
    const std::string share = read_environment("ZERORUN_SHARE_GPUS").value_or("");
    if (ranks != kNone && !is_on(share)) {
      fail<ConfigError>(
          "ranks {} have the same GPU: show each rank one of its own (CUDA_VISIBLE_DEVICES, srun "
          "--gpus-per-task=1), or start fewer; ZERORUN_SHARE_GPUS=1 lets ranks share, for tests",
          ranks);
    }
    if (ranks != kNone && share != "nccl") return make_host_staged_communicator(options);
  }
  if (read_environment("NCCL_COMM_BLOCKING")) {
    fail<ConfigError>(
        "NCCL_COMM_BLOCKING is set, and NCCL lets it take the place of what zerorun asks for each "
        "communicator: unset it");
  }
  return open_nccl_backend().make_communicator(options);
}

std::string describe_device_collectives() {
  try {
    return open_nccl_backend().describe();
  } catch (const DeviceError&) {
    return {};  // describe_cuda says what is missing
  }
}

}  // namespace zerorun
