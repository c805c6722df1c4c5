#pragma once

#include <memory>
#include <string>

#include "core/build_id.h"
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

// The entry point of the communicators in libzerorun_cuda.so, a plugin (device/plugin.h).
struct NcclBackend {
  BuildId build;
  // make_nccl_communicator(). options.device is a device of the same library.
  std::shared_ptr<Communicator> (*make_communicator)(const CommunicatorOptions& options);
  // For `zerorun env`: version and file of NCCL, or why it cannot be used.
  std::string (*describe)();
};
inline constexpr const char* kNcclBackendEntry = "zerorun_nccl_backend";

}  // namespace zerorun
