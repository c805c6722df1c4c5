#include "device/cuda/libraries/nvml.h"

#include <algorithm>
#include <array>

#include "core/check.h"
#include "device/cuda/libraries/nvml_functions.h"

namespace zerorun {

namespace {

GpuPath path_of(nvmlGpuTopologyLevel_t level) {
  switch (level) {
    case NVML_TOPOLOGY_INTERNAL:
    case NVML_TOPOLOGY_SINGLE:
      return GpuPath::pcie_switch;
    case NVML_TOPOLOGY_MULTIPLE:
      return GpuPath::pcie_switches;
    case NVML_TOPOLOGY_HOSTBRIDGE:
      return GpuPath::host_bridge;
    case NVML_TOPOLOGY_NODE:
      return GpuPath::numa_node;
    default:
      return GpuPath::system;
  }
}

class Session final : public Nvml {
 public:
  Session() : nvml_(load_nvml()) { check(nvml_.init(), "nvmlInit"); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() override { nvml_.shutdown(); }

  std::string driver_version() const override {
    std::array<char, NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE> text{};
    check(nvml_.driver_version(text.data(), text.size()), "nvmlSystemGetDriverVersion");
    return text.data();
  }

  GpuLink link(const PciAddress& gpu, const PciAddress& peer) const override {
    const nvmlDevice_t device = find(gpu);
    const nvmlDevice_t other = find(peer);
    // Links to a switch lead wherever the driver has set it up to.
    nvmlGpuP2PStatus_t status = NVML_P2P_STATUS_UNKNOWN;
    const bool connected =
        nvml_.p2p_status(device, other, NVML_P2P_CAPS_INDEX_NVLINK, &status) == NVML_SUCCESS &&
        status == NVML_P2P_STATUS_OK;
    if (connected) {
      const int links = std::min(count_nvlinks(device, peer), count_nvlinks(other, gpu));
      if (links > 0) return {GpuPath::nvlink, links};
    }
    nvmlGpuTopologyLevel_t level = NVML_TOPOLOGY_SYSTEM;
    check(nvml_.common_ancestor(device, other, &level), "nvmlDeviceGetTopologyCommonAncestor");
    return {path_of(level)};
  }

 private:
  nvmlDevice_t find(const PciAddress& address) const {
    nvmlDevice_t device = nullptr;
    const std::string id =
        fmt::format("{:08X}:{:02X}:{:02X}.0", address.domain, address.bus, address.device);
    check(nvml_.device_at(id.c_str(), &device), "nvmlDeviceGetHandleByPciBusId");
    return device;
  }

  // Counts the links of `device` that end at `peer` or at a switch.
  int count_nvlinks(nvmlDevice_t device, const PciAddress& peer) const {
    int count = 0;
    for (unsigned link = 0; link < NVML_NVLINK_MAX_LINKS; ++link) {
      nvmlEnableState_t state = NVML_FEATURE_DISABLED;
      if (nvml_.nvlink_state(device, link, &state) != NVML_SUCCESS ||
          state != NVML_FEATURE_ENABLED) {
        continue;
      }
      nvmlIntNvLinkDeviceType_t type = NVML_NVLINK_DEVICE_TYPE_UNKNOWN;
      nvmlPciInfo_t remote{};
      const bool to_switch = nvml_.nvlink_remote_type(device, link, &type) == NVML_SUCCESS &&
                             type == NVML_NVLINK_DEVICE_TYPE_SWITCH;
      if (to_switch || (nvml_.nvlink_remote(device, link, &remote) == NVML_SUCCESS &&
                        PciAddress{remote.domain, remote.bus, remote.device} == peer)) {
        ++count;
      }
    }
    return count;
  }

  void check(nvmlReturn_t result, const char* what) const {
    if (result == NVML_SUCCESS) return;
    fail<DeviceError>("{} failed: {}", what, nvml_.error_string(result));
  }

  const NvmlFunctions nvml_;
};

}  // namespace

std::unique_ptr<Nvml> open_nvml() { return std::make_unique<Session>(); }

}  // namespace zerorun
