#pragma once

#include <nvml.h>

#include "os/shared_library.h"

#define ZR_NVML_FUNCTIONS(X)                                 \
  X(init, nvmlInit_v2)                                       \
  X(shutdown, nvmlShutdown)                                  \
  X(error_string, nvmlErrorString)                           \
  X(driver_version, nvmlSystemGetDriverVersion)              \
  X(device_at, nvmlDeviceGetHandleByPciBusId_v2)             \
  X(common_ancestor, nvmlDeviceGetTopologyCommonAncestor)    \
  X(p2p_status, nvmlDeviceGetP2PStatus)                      \
  X(nvlink_state, nvmlDeviceGetNvLinkState)                  \
  X(nvlink_remote_type, nvmlDeviceGetNvLinkRemoteDeviceType) \
  X(nvlink_remote, nvmlDeviceGetNvLinkRemotePciInfo_v2)

namespace zerorun {

struct NvmlFunctions {
  ZR_NVML_FUNCTIONS(ZR_DECLARE_FUNCTION)
};
// Throws DeviceError if the driver has no NVML.
NvmlFunctions load_nvml();

}  // namespace zerorun
