#include "core/check.h"
#include "device/plugin.h"
#include "train/cpu/cpu_kernels.h"
#include "train/model/kernels.h"

namespace zerorun::train {

namespace {

// Throws ConfigError for an option that would have no effect.
void check(const KernelOptions& options, bool on_host) {
  const bool fp32 = options.dtype == DType::fp32;
  const bool separate = !options.gelu_epilogue || !options.bias_gradient_epilogue;
  const bool limited = options.attention_workspace.has_value();
  const auto refuse_if = [&](bool condition, const char* why) {
    if (condition) throw ConfigError(fmt::format(fmt::runtime(why), name_of(options.dtype)));
  };
  refuse_if(options.tf32 && on_host,
            "--tf32: products on the CPU are fp32; it needs --accelerator cuda");
  refuse_if(options.tf32 && !fp32,
            "--tf32: products of {} parameters are not in TF32; it needs --dtype fp32");
  refuse_if(separate && on_host,
            "--epilogues: those are of products on GPUs; it needs --accelerator cuda");
  refuse_if(options.fast_attention && on_host,
            "--fast_attention: cuDNN computes on GPUs only; it needs --accelerator cuda");
  refuse_if(options.fast_attention && fp32,
            "--fast_attention: cuDNN's attention is for 16 bits, and parameters are {}; it needs "
            "--dtype bf16 or fp16");
  refuse_if(options.fast_attention && limited,
            "--fast_attention takes none of the memory that --attention_workspace limits: leave "
            "one of them out");
  refuse_if(limited && on_host,
            "--attention_workspace: cuDNN computes on GPUs only; it needs --accelerator cuda");
  refuse_if(limited && fp32,
            "--attention_workspace: cuDNN's attention is for 16 bits, and parameters are {}; it "
            "needs --dtype bf16 or fp16");
}

}  // namespace

std::unique_ptr<Kernels> make_kernels(Device& device, const KernelOptions& options) {
  check(options, device.is_host());
  if (device.is_host()) return std::make_unique<CpuKernels>();
  const SharedLibrary library = open_plugin("libzerorun_train_cuda.so");
  return plugin_entry<CudaKernelsPlugin>(library, kCudaKernelsEntry).make(device, options);
}

}  // namespace zerorun::train
