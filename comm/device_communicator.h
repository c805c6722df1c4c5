#pragma once

#include <memory>
#include <string>

#include "zerorun/communicator.h"

namespace zerorun {

// Makes a communicator for the memory of options.device, a GPU. It uses NCCL. If ranks share a GPU,
// which NCCL does not support, it copies tensors through host memory instead.
std::shared_ptr<Communicator> make_device_communicator(const CommunicatorOptions& options);

// Makes a communicator for the memory of options.device, of any kind, that goes through host
// memory: inputs are copied D2H, ranks of one host reduce them in shared memory, outputs are copied
// H2D. It is for ranks that share one GPU (tests, debugging). Results are bitwise identical to
// those of the shared-memory transport.
std::shared_ptr<Communicator> make_host_staged_communicator(const CommunicatorOptions& options);

// For `zerorun env`: NCCL's version and file, or why it cannot be used. Empty if this build cannot
// use GPUs at all.
std::string describe_device_collectives();

}  // namespace zerorun
