#pragma once

#include <memory>
#include <string>

namespace zerorun {

struct PciAddress {
  unsigned domain = 0;
  unsigned bus = 0;
  unsigned device = 0;
  bool operator==(const PciAddress&) const = default;
};

// The path between two GPUs, from the nearest to the farthest.
enum class GpuPath : unsigned char {
  nvlink,
  pcie_switch,
  pcie_switches,
  host_bridge,
  numa_node,
  system,
};

struct GpuLink {
  GpuPath path = GpuPath::system;
  int nvlinks = 0;  // directly or through NVSwitch; 0 unless the path is nvlink
};

// NVML, the management library that comes with the driver.
class Nvml {
 public:
  virtual ~Nvml() = default;
  virtual std::string driver_version() const = 0;
  // Throws DeviceError if NVML does not know.
  virtual GpuLink link(const PciAddress& gpu, const PciAddress& peer) const = 0;
};

// Throws DeviceError that says what is missing: the driver's library, or its header in this build.
std::unique_ptr<Nvml> open_nvml();

}  // namespace zerorun
