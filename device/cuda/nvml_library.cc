#include <array>
#include <string>

#include "core/shared_library.h"
#include "device/cuda/nvml_functions.h"

namespace zerorun {

NvmlFunctions load_nvml() {
  const SharedLibrary library(std::array<std::string, 1>{"libnvidia-ml.so.1"});
  NvmlFunctions nvml;
  const auto find = [&](auto*& function, const char* name) {
    function =
        library.function<std::remove_pointer_t<std::remove_reference_t<decltype(function)>>>(name);
  };
  find(nvml.init, "nvmlInit_v2");
  find(nvml.shutdown, "nvmlShutdown");
  find(nvml.error_string, "nvmlErrorString");
  find(nvml.driver_version, "nvmlSystemGetDriverVersion");
  find(nvml.device_at, "nvmlDeviceGetHandleByPciBusId_v2");
  find(nvml.common_ancestor, "nvmlDeviceGetTopologyCommonAncestor");
  find(nvml.p2p_status, "nvmlDeviceGetP2PStatus");
  find(nvml.nvlink_state, "nvmlDeviceGetNvLinkState");
  find(nvml.nvlink_remote_type, "nvmlDeviceGetNvLinkRemoteDeviceType");
  find(nvml.nvlink_remote, "nvmlDeviceGetNvLinkRemotePciInfo_v2");
  return nvml;
}

}  // namespace zerorun
