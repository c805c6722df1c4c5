#pragma once

#include <memory>
#include <string>

#include "zerorun/communicator.h"

namespace zerorun {

// Makes a communicator for the memory of options.device, which is not the host's: one of the
// device's own library, or one that stages through the host where ranks share a GPU, which such
// libraries refuse.
std::shared_ptr<Communicator> make_device_communicator(const CommunicatorOptions& options);

// For `zerorun env`: the library of collectives on GPUs and its file, or why there is none; empty
// when this zerorun cannot use GPUs at all.
std::string describe_device_collectives();

}  // namespace zerorun
