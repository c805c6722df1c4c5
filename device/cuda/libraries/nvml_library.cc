#include <array>
#include <string>

#include "device/cuda/libraries/nvml_functions.h"
#include "os/shared_library.h"

namespace zerorun {

NvmlFunctions load_nvml() {
  const SharedLibrary library(std::array<std::string, 1>{"libnvidia-ml.so.1"});
  NvmlFunctions nvml;
  library.find(nvml.init, "nvmlInit_v2");
  library.find(nvml.shutdown, "nvmlShutdown");
  library.find(nvml.error_string, "nvmlErrorString");
  library.find(nvml.driver_version, "nvmlSystemGetDriverVersion");
  library.find(nvml.device_at, "nvmlDeviceGetHandleByPciBusId_v2");
  library.find(nvml.common_ancestor, "nvmlDeviceGetTopologyCommonAncestor");
  library.find(nvml.p2p_status, "nvmlDeviceGetP2PStatus");
  library.find(nvml.nvlink_state, "nvmlDeviceGetNvLinkState");
  library.find(nvml.nvlink_remote_type, "nvmlDeviceGetNvLinkRemoteDeviceType");
  library.find(nvml.nvlink_remote, "nvmlDeviceGetNvLinkRemotePciInfo_v2");
  return nvml;
}

}  // namespace zerorun
