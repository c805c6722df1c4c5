// libzerorun_cuda.so's entry point to its devices.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "config/env.h"
#include "core/check.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/device_report.h"
#include "device/cuda/libraries/library_files.h"
#include "device/cuda_backend.h"

namespace zerorun {

namespace {

// The rank's number on its host, as the launcher or the scheduler says.
int local_rank_of_environment() {
  for (const char* name : {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK",
                           "MPI_LOCALRANKID", "PALS_LOCAL_RANKID", "SLURM_LOCALID"}) {
    if (const auto number = read_environment_int(name, 0, 1 << 20)) {
      return static_cast<int>(*number);
    }
  }
  return 0;
}

// True where a scheduler has given this process a GPU of its own (srun --gpus-per-task=1, a worker
// of Ray): it is the rank's, whatever its number.
bool sees_one_gpu() {
  const std::string visible = read_environment("CUDA_VISIBLE_DEVICES").value_or("");
  return !visible.empty() && visible.find(',') == std::string::npos;
}

// The index of LOCAL_RANK's device, or of the one that is asked for.
int choose_device(const CudaDeviceOptions& options) {
  const int count = visible_cuda_devices();
  const int index = options.index.value_or(local_rank_of_environment());
  const bool share = is_on(read_environment("ZERORUN_SHARE_GPUS").value_or(""));
  if (count > 0 && share && !options.index) return index % count;
  if (index >= 0 && index < count) return index;
  if (count == 1 && !options.index && sees_one_gpu()) return 0;
  fail<DeviceError>(
      "CUDA: device {} is asked for{}, but {} visible; start at most one rank per GPU, or set "
      "ZERORUN_SHARE_GPUS=1 to let ranks share them",
      index, options.index ? "" : " (LOCAL_RANK)",
      count == 1 ? "1 GPU is" : fmt::format("{} GPUs are", count));
}

std::vector<std::string> report() {
  std::vector<std::string> lines = cuda_report();
  for (std::string& line : describe_libraries_of_cuda()) lines.push_back(std::move(line));
  return lines;
}

std::shared_ptr<Device> make_device_of(const CudaDeviceOptions& options) {
  return std::make_shared<CudaDevice>(choose_device(options), options.memory_limit);
}

std::string identity_of_device(const Device& device) {
  const auto* cuda = dynamic_cast<const CudaDevice*>(&device);
  ZR_CHECK(cuda != nullptr, "got device {}, expected one of CUDA", device.name());
  return cuda_device_identity(cuda->index());
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const CudaBackend* zerorun_cuda_backend() {
  static const CudaBackend backend = {
      build_id(), visible_cuda_devices, why_no_cuda_device, cuda_driver_fails,
      report,     make_device_of,       identity_of_device};
  return &backend;
}

}  // namespace zerorun
