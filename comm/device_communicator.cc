#include "comm/device_communicator.h"

#include <set>
#include <string>

#include "comm/host_staged_communicator.h"
#include "config/env.h"
#include "core/check.h"
#include "device/cuda_backend.h"

namespace zerorun {

namespace {

// Whether two ranks have the same GPU. All ranks get the same answer.
bool ranks_share_devices(const CommunicatorOptions& options, const std::string& mine) {
  const auto key = [&](int rank) { return fmt::format("{}/device/{}", options.name, rank); };
  options.store->set(key(options.rank), mine);
  std::set<std::string> devices;
  for (int rank = 0; rank < options.world_size; ++rank) {
    devices.insert(options.store->get(key(rank), options.timeout));
  }
  return devices.size() < static_cast<size_t>(options.world_size);
}

}  // namespace

std::shared_ptr<Communicator> make_device_communicator(const CommunicatorOptions& options) {
  const std::shared_ptr<CudaBackend> backend = open_cuda_backend();
  if (options.world_size > 1) {
    ZR_CHECK(options.store != nullptr, "{} ranks need a store to find each other",
             options.world_size);
    const bool share = ranks_share_devices(options, backend->identity_of(*options.device));
    if (share && read_environment("ZERORUN_SHARE_GPUS").value_or("") != "nccl") {
      return make_host_staged_communicator(options);
    }
  }
  return backend->make_communicator(options);
}

}  // namespace zerorun
