#pragma once

#include <nvml.h>

namespace zerorun {

// Functions of NVML.
struct NvmlFunctions {
  decltype(&nvmlInit_v2) init = nullptr;
  decltype(&nvmlShutdown) shutdown = nullptr;
  decltype(&nvmlErrorString) error_string = nullptr;
  decltype(&nvmlSystemGetDriverVersion) driver_version = nullptr;
  decltype(&nvmlDeviceGetHandleByPciBusId_v2) device_at = nullptr;
  decltype(&nvmlDeviceGetTopologyCommonAncestor) common_ancestor = nullptr;
  decltype(&nvmlDeviceGetP2PStatus) p2p_status = nullptr;
  decltype(&nvmlDeviceGetNvLinkState) nvlink_state = nullptr;
  decltype(&nvmlDeviceGetNvLinkRemoteDeviceType) nvlink_remote_type = nullptr;
  decltype(&nvmlDeviceGetNvLinkRemotePciInfo_v2) nvlink_remote = nullptr;
};
// Throws DeviceError if the driver has no NVML.
NvmlFunctions load_nvml();

}  // namespace zerorun
