#pragma once

#include <memory>

#include "zerorun/communicator.h"

namespace zerorun {

// Makes a communicator for the memory of options.device, of any kind, that goes through host
// memory: inputs are copied D2H, ranks of one host reduce them in shared memory, outputs are copied
// H2D. It is for ranks that share one GPU (tests, debugging). Results are bitwise identical to
// those of the shared-memory transport.
std::shared_ptr<Communicator> make_host_staged_communicator(const CommunicatorOptions& options);

}  // namespace zerorun
