#include "examples/train/make_kernels.h"

#include <array>
#include <string>

#include "core/check.h"
#include "core/shared_library.h"
#include "device/cuda_backend.h"
#include "examples/train/cpu/cpu_kernels.h"

namespace zerorun::train {

namespace {

std::unique_ptr<Kernels> make_cuda_kernels(Device& device, const KernelOptions& options) {
  const SharedLibrary library(
      std::array<std::string, 1>{find_cuda_library("libzerorun_train_cuda.so")});
  return std::unique_ptr<Kernels>(
      library.function<MakeCudaKernels>(kMakeCudaKernels)(device, options));
}

}  // namespace

std::unique_ptr<Kernels> make_kernels(Device& device, const KernelOptions& options) {
  if (!device.is_host()) return make_cuda_kernels(device, options);
  if (options.tf32) {
    fail<ConfigError>("--tf32: products on the CPU are fp32; it needs --accelerator cuda");
  }
  if (options.attention_workspace) {
    fail<ConfigError>(
        "--attention_workspace: cuDNN computes on GPUs only; it needs --accelerator cuda");
  }
  return std::make_unique<CpuKernels>();
}

}  // namespace zerorun::train
