#include "comm/device_communicator.h"

#include <set>
#include <string>

#include "comm/host_staged_communicator.h"
#include "comm/nccl/backend.h"
#include "comm/rendezvous/patient_get.h"
#include "config/env.h"
#include "core/check.h"
#include "device/cuda_backend.h"
#include "device/plugin.h"

namespace zerorun {

namespace {

const NcclBackend& open_nccl_backend() {
  return plugin_entry<NcclBackend>(open_plugin(kCudaLibrary), kNcclBackendEntry);
}

// Tells all ranks alike whether two of them have the same GPU: rank 0 looks.
bool ranks_share_devices(const CommunicatorOptions& options, const std::string& mine) {
  const auto key = [&](int rank) { return fmt::format("{}/device/{}", options.name, rank); };
  const std::string answer = options.name + "/devices";
  constexpr const char* kShared = "shared";
  const PatientGet get(options);
  options.store->set(key(options.rank), mine);
  if (options.rank > 0) {
    return get(answer, [&] {
             return fmt::format("all {} ranks to come with their GPUs: rank 0 knows who is missing",
                                options.world_size);
           }) == kShared;
  }
  std::set<std::string> devices;
  for (int rank = 0; rank < options.world_size; ++rank) {
    devices.insert(get(key(rank), [&] {
      return fmt::format("rank {} of {} to come with its GPU", rank, options.world_size);
    }));
  }
  const bool share = devices.size() < static_cast<size_t>(options.world_size);
  options.store->set(answer, share ? kShared : "own");
  return share;
}

}  // namespace

std::shared_ptr<Communicator> make_device_communicator(const CommunicatorOptions& options) {
  if (options.world_size > 1) {
    ZR_CHECK(options.store != nullptr, "{} ranks need a store to find each other",
             options.world_size);
    const bool share =
        ranks_share_devices(options, open_cuda_backend().identity_of(*options.device));
    if (share && read_environment("ZERORUN_SHARE_GPUS").value_or("") != "nccl") {
      return make_host_staged_communicator(options);
    }
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
