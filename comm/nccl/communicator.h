#pragma once

#include <memory>

#include "zerorun/communicator.h"

namespace zerorun {

// Makes a communicator for the memory of options.device, a CUDA device, over NCCL. Each rank has to
// have its own GPU. A job of one rank uses no NCCL unless options has a store, which lets tests use
// NCCL on a machine with one GPU. Throws CommError if the ranks cannot meet.
//
// NCCL sums 16-bit inputs in an order of its own and rounds to 16 bits. An fp32 output of 16-bit
// inputs is that rounded sum, converted. Reducing in fp32 (communication_data_type) avoids the
// rounding and sends twice the bytes.
std::shared_ptr<Communicator> make_nccl_communicator(const CommunicatorOptions& options);

}  // namespace zerorun
