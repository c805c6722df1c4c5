#pragma once

#include <memory>
#include <string>

#include "core/build_id.h"
#include "zerorun/communicator.h"

namespace zerorun {

// The entry point of the communicators in libzerorun_cuda.so, a plugin (device/plugin.h).
struct NcclBackend {
  BuildId build;
  // See make_nccl_communicator in comm/nccl/communicator.h. options.device is a device of the same
  // library.
  std::shared_ptr<Communicator> (*make_communicator)(const CommunicatorOptions& options);
  // For `zerorun env`: version and file of NCCL, or why it cannot be used.
  std::string (*describe)();
};
inline constexpr const char* kNcclBackendEntry = "zerorun_nccl_backend";

}  // namespace zerorun
