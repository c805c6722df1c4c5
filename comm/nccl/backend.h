#pragma once

#include <memory>
#include <string>

#include "core/build_id.h"
#include "zerorun/communicator.h"

namespace zerorun {

// The communicators of libzerorun_cuda.so, a plugin (device/plugin.h).
struct NcclBackend {
  BuildId build;
  // options.device is a device of the same library; comm/nccl/communicator.h describes the result.
  std::shared_ptr<Communicator> (*make_communicator)(const CommunicatorOptions& options);
  // For `zerorun env`: version and file of NCCL, or why there is none.
  std::string (*describe)();
};
inline constexpr const char* kNcclBackendEntry = "zerorun_nccl_backend";

}  // namespace zerorun
