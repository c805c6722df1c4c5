// NVML for the fake GPUs, in the place of device/cuda/libraries/nvml_library.cc, which opens the
// real library. The source of each function is NVML's API reference for CUDA 13: all but
// nvmlErrorString return NVML_ERROR_INVALID_ARGUMENT for a null, NVML_ERROR_NOT_SUPPORTED where the
// GPU has no such thing.
#include <nvml.h>

#include <cstdio>
#include <cstring>
#include <optional>

#include "device/cuda/libraries/nvml_functions.h"
#include "testing/fake_cuda/fake_cuda.h"

struct nvmlDevice_st {
  int index;
};

namespace {

using zerorun::fake::FakeCuda;
using zerorun::fake::GpuLinks;

nvmlReturn_t enter(const char* name) {
  return static_cast<nvmlReturn_t>(FakeCuda::instance().enter(name));
}

constexpr int kSwitch = -1;

// The ends of a device's NVLinks: the device of this number, or a switch.
std::vector<int> ends_of(int device) {
  const GpuLinks links = FakeCuda::instance().links();
  std::vector<int> ends(static_cast<size_t>(links.switched), kSwitch);
  for (int peer = 0; peer < FakeCuda::instance().devices(); ++peer) {
    ends.insert(ends.end(), static_cast<size_t>(links.direct(device, peer)), peer);
  }
  return ends;
}

std::optional<int> end_of(nvmlDevice_t device, unsigned link) {
  const std::vector<int> ends = ends_of(device->index);
  return link < ends.size() ? std::optional(ends[link]) : std::nullopt;
}

}  // namespace

// Counts: each needs an nvmlShutdown of its own.
nvmlReturn_t nvmlInit_v2() {
  if (const auto planned = enter(__func__); planned != NVML_SUCCESS) return planned;
  FakeCuda::instance().hold("NVML sessions", &kSwitch);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlShutdown() {
  FakeCuda::instance().release("NVML sessions", &kSwitch);
  return enter(__func__);
}

const char* nvmlErrorString(nvmlReturn_t /*result*/) { return "a fake error"; }

// The length is that of the array.
nvmlReturn_t nvmlSystemGetDriverVersion(char* version, unsigned length) {
  if (const auto planned = enter(__func__); planned != NVML_SUCCESS) return planned;
  std::snprintf(version, length, "580.00.01");
  return NVML_SUCCESS;
}

// As cudaGetDeviceProperties has it, a device's bus has its number.
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char* address, nvmlDevice_t* device) {
  if (const auto planned = enter(__func__); planned != NVML_SUCCESS) return planned;
  static nvmlDevice_st devices[] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};
  unsigned bus = 0;
  if (std::strlen(address) != std::strlen("00000000:00:00.0") ||
      std::sscanf(address, "00000000:%X:00.0", &bus) != 1 ||
      static_cast<int>(bus) >= FakeCuda::instance().devices()) {
    return NVML_ERROR_NOT_FOUND;
  }
  *device = &devices[bus];
  return NVML_SUCCESS;
}

// Of two devices, the closest level at which they meet.
nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device, nvmlDevice_t peer,
                                                 nvmlGpuTopologyLevel_t* level) {
  if (const auto planned = enter(__func__); planned != NVML_SUCCESS) return planned;
  const bool near = device->index / 2 == peer->index / 2;  // two devices to a host bridge
  *level = near ? NVML_TOPOLOGY_HOSTBRIDGE : NVML_TOPOLOGY_SYSTEM;
  return NVML_SUCCESS;
}

// NVML_P2P_STATUS_NOT_SUPPORTED is a status, and no error.
nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device, nvmlDevice_t peer,
                                    nvmlGpuP2PCapsIndex_t index, nvmlGpuP2PStatus_t* status) {
  if (const auto planned = enter(__func__); planned != NVML_SUCCESS) return planned;
  if (index != NVML_P2P_CAPS_INDEX_NVLINK) return NVML_ERROR_INVALID_ARGUMENT;
  const GpuLinks links = FakeCuda::instance().links();
  const bool linked = links.switched > 0 || links.direct(device->index, peer->index) > 0;
  *status = linked ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED;
  return NVML_SUCCESS;
}

// NVML_ERROR_NOT_SUPPORTED without NVLink; links beyond the last are disabled.
nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link,
                                      nvmlEnableState_t* state) {
  if (const auto planned = enter(__func__); planned != NVML_SUCCESS) return planned;
  if (ends_of(device->index).empty()) return NVML_ERROR_NOT_SUPPORTED;
  *state = end_of(device, link) ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
  return NVML_SUCCESS;
}

// Refuses links that are not there.
nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned link,
                                                 nvmlIntNvLinkDeviceType_t* type) {
  if (const auto planned = enter(__func__); planned != NVML_SUCCESS) return planned;
  const std::optional<int> end = end_of(device, link);
  if (!end) return NVML_ERROR_INVALID_ARGUMENT;
  *type = *end == kSwitch ? NVML_NVLINK_DEVICE_TYPE_SWITCH : NVML_NVLINK_DEVICE_TYPE_GPU;
  return NVML_SUCCESS;
}

// Only of links that end at a device.
nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned link,
                                                 nvmlPciInfo_t* remote) {
  if (const auto planned = enter(__func__); planned != NVML_SUCCESS) return planned;
  const std::optional<int> end = end_of(device, link);
  if (!end || *end == kSwitch) return NVML_ERROR_NOT_SUPPORTED;
  *remote = {0, static_cast<unsigned>(*end), 0};
  return NVML_SUCCESS;
}

namespace zerorun {

NvmlFunctions load_nvml() { return {ZR_NVML_FUNCTIONS(ZR_LINKED_FUNCTION)}; }

}  // namespace zerorun
