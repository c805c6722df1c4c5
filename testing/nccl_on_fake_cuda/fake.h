// What the parts of this fake of CUDA share: GPUs whose memory is the process's own, whose streams
// are done when work is submitted, and whose kernels do nothing.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace zerorun::fake_cuda {

constexpr int kVersion = 13000;
constexpr int kMaxDevices = 8;

// This fake's function of that name; null: it has none. (The headers rename some to their newest
// version: cuMemGetAddressRange to ..._v2.)
void* function_of(const std::string& name);

void set_device_count(int count);
int device_count();
inline bool is_device(int device) { return device >= 0 && device < device_count(); }
// "0000:10:00.0" and so on.
std::string bus_address(int device);
int current_device();

// What is known of the memory at an address.
struct Block {
  uintptr_t begin = 0;
  size_t bytes = 0;
  cudaMemoryType type = cudaMemoryTypeUnregistered;
  int device = 0;
  bool allocated = false;  // else only registered
};
Block block_at(const void* address);

// As an H100 answers; 0, not supported, for all that has to do with other GPUs' memory.
int attribute_of(cudaDeviceAttr attribute, int device);

}  // namespace zerorun::fake_cuda
