#pragma once

#include <memory>

#include "zerorun/communicator.h"

namespace zerorun {

// Collectives on the memory of options.device, whichever it is, through the host: inputs are copied
// down, ranks of one host reduce them in shared memory, outputs are copied up. For ranks that share
// one GPU (tests, debugging); sums are those of the shared-memory transport, bit for bit.
std::shared_ptr<Communicator> make_host_staged_communicator(const CommunicatorOptions& options);

}  // namespace zerorun
