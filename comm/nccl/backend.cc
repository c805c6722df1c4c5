// libzerorun_cuda.so's one entry point. It lies in comm/, from where both the device and the
// communicator can be seen.
#include <memory>
#include <utility>

#include "comm/nccl/communicator.h"
#include "comm/nccl/library.h"
#include "config/env.h"
#include "core/check.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/device_report.h"
#include "device/cuda/library_report.h"
#include "device/cuda_backend.h"

namespace zerorun {

namespace {

// LOCAL_RANK's device, or the one asked for.
int choose_device(const CudaDeviceOptions& options) {
  const int count = visible_cuda_devices();
  const auto local_rank = read_environment_int("LOCAL_RANK", 0, 1 << 20);
  const int index = options.index.value_or(static_cast<int>(local_rank.value_or(0)));
  const bool share = is_on(read_environment("ZERORUN_SHARE_GPUS").value_or(""));
  if (count > 0 && share && !options.index) return index % count;
  if (index >= 0 && index < count) return index;
  fail<DeviceError>(
      "CUDA: device {} is asked for{}, but {} visible; start at most one rank per GPU, or set "
      "ZERORUN_SHARE_GPUS=1 to let ranks share them",
      index, options.index ? "" : " (LOCAL_RANK)",
      count == 1 ? "1 GPU is" : fmt::format("{} GPUs are", count));
}

class Backend final : public CudaBackend {
 public:
  int device_count() const override { return visible_cuda_devices(); }
  std::string why_no_device() const override { return why_no_cuda_device(); }
  std::vector<std::string> report() const override {
    std::vector<std::string> lines = cuda_report();
    for (std::string& line : describe_libraries_of_cuda()) lines.push_back(std::move(line));
    lines.push_back(describe_nccl());
    return lines;
  }
  std::shared_ptr<Device> make_device(const CudaDeviceOptions& options) override {
    return std::make_shared<CudaDevice>(choose_device(options), options.memory_limit);
  }
  std::string identity_of(const Device& device) const override {
    const auto* cuda = dynamic_cast<const CudaDevice*>(&device);
    ZR_CHECK(cuda != nullptr, "got device {}, expected one of CUDA", device.name());
    return cuda_device_identity(cuda->index());
  }
  std::shared_ptr<Communicator> make_communicator(const CommunicatorOptions& options) override {
    return make_nccl_communicator(options);
  }
};

}  // namespace

extern "C" __attribute__((visibility("default"))) std::shared_ptr<CudaBackend>*
zerorun_cuda_backend() {
  return new std::shared_ptr<CudaBackend>(std::make_shared<Backend>());
}

}  // namespace zerorun
