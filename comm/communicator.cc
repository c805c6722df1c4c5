#include "zerorun/communicator.h"

#include <utility>

#include "comm/device_communicator.h"
#include "comm/group_communicator.h"
#include "comm/host_transport.h"
#include "comm/rendezvous/tcp_store.h"
#include "config/env.h"
#include "core/check.h"

namespace zerorun {

std::string_view name_of(Collective op) {
  static constexpr std::array<std::string_view, kCollectives> kNames = {
      "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "barrier"};
  return kNames.at(static_cast<size_t>(op));
}

std::shared_ptr<Communicator> make_communicator(const CommunicatorOptions& options) {
  ZR_CHECK(options.world_size >= 1 && options.rank >= 0 && options.rank < options.world_size,
           "got rank {} of {}", options.rank, options.world_size);
  // The transport follows from where the memory is and how many ranks there are.
  if (options.device && !options.device->is_host()) return make_device_communicator(options);
  GroupOptions group(options);
  std::shared_ptr<Transport> transport = make_host_transport(group);
  return std::make_shared<GroupCommunicator>(std::move(group), std::move(transport));
}

std::shared_ptr<Communicator> connect(const RankInfo& info, std::chrono::milliseconds timeout,
                                      std::shared_ptr<Device> device) {
  CommunicatorOptions options;
  options.device = std::move(device);
  options.rank = info.rank;
  options.world_size = info.world_size;
  options.timeout = comm_timeout(timeout);
  options.master_addr = info.master_addr;
  // On CPUs of one host needed until all ranks have met; others watch each other through it.
  if (info.world_size > 1) options.store = rendezvous(info, options.timeout);
  return make_communicator(options);
}

}  // namespace zerorun
