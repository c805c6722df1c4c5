#include "train/run/make_kernels.h"

#include "core/check.h"
#include "device/plugin.h"
#include "train/cpu/cpu_kernels.h"
#include "train/cuda/plugin.h"

namespace zerorun::train {

namespace {

std::unique_ptr<Kernels> make_cuda_kernels(Device& device, const KernelOptions& options) {
  const SharedLibrary library = open_plugin("libzerorun_train_cuda.so");
  return plugin_entry<CudaKernelsPlugin>(library, kCudaKernelsEntry).make(device, options);
}

// Throws ConfigError for an option that would have no effect.
void check(const KernelOptions& options, bool on_host) {
  if (options.tf32 && on_host) {
    fail<ConfigError>("--tf32: products on the CPU are fp32; it needs --accelerator cuda");
  }
  if (options.tf32 && options.dtype != DType::fp32) {
    fail<ConfigError>("--tf32: products of {} parameters are not in TF32; it needs --dtype fp32",
                      name_of(options.dtype));
  }
  if (on_host && !(options.gelu_epilogue && options.bias_gradient_epilogue)) {
    fail<ConfigError>("--epilogues: those are of products on GPUs; it needs --accelerator cuda");
  }
  if (options.fast_attention && on_host) {
    fail<ConfigError>("--fast_attention: cuDNN computes on GPUs only; it needs --accelerator cuda");
  }
  if (options.fast_attention && options.dtype == DType::fp32) {
    fail<ConfigError>(
        "--fast_attention: cuDNN's attention is for 16 bits, and parameters are fp32; it needs "
        "--dtype bf16 or fp16");
  }
  if (options.fast_attention && options.attention_workspace) {
    fail<ConfigError>(
        "--fast_attention takes none of the memory that --attention_workspace limits: leave one of "
        "them out");
  }
  if (options.attention_workspace && on_host) {
    fail<ConfigError>(
        "--attention_workspace: cuDNN computes on GPUs only; it needs --accelerator cuda");
  }
  if (options.attention_workspace && options.dtype == DType::fp32) {
    fail<ConfigError>(
        "--attention_workspace: cuDNN's attention is for 16 bits, and parameters are fp32; it "
        "needs --dtype bf16 or fp16");
  }
}

}  // namespace

std::unique_ptr<Kernels> make_kernels(Device& device, const KernelOptions& options) {
  check(options, device.is_host());
  if (!device.is_host()) return make_cuda_kernels(device, options);
  return std::make_unique<CpuKernels>();
}

}  // namespace zerorun::train
