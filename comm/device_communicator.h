#pragma once

#include <memory>

#include "zerorun/communicator.h"

namespace zerorun {

// Collectives on the memory of options.device, which is not the host's: by the device's own
// library, or through the host where ranks share a GPU, which such libraries refuse.
std::shared_ptr<Communicator> make_device_communicator(const CommunicatorOptions& options);

}  // namespace zerorun
