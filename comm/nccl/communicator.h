#pragma once

#include <memory>

#include "zerorun/communicator.h"

namespace zerorun {

// Collectives on the memory of options.device, a CUDA device, by NCCL. A job of one rank needs
// none, and has none unless a store is given: so NCCL can be tried where there is one GPU. Ranks
// must have GPUs of their own. Throws CommError when they cannot meet.
//
// NCCL sums inputs of 16 bits in an order of its own and rounds to 16 bits. Where the output is in
// fp32, that rounded sum is converted: reducing in fp32 (communication_data_type) costs twice the
// bytes and is exact to fp32.
std::shared_ptr<Communicator> make_nccl_communicator(const CommunicatorOptions& options);

}  // namespace zerorun
