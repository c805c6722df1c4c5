// The fake CUDA driver: see include/cuda.h. The source of each function is its comment in
// CUDA 13.0's cuda.h; of the last one, in cuda_runtime_api.h.
#include <cuda.h>

#include <cstring>

#include "testing/fake_cuda/runtime_call.h"

using namespace zerorun::fake;

// Null, and no error, on a thread without a context.
CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = has_context ? reinterpret_cast<CUcontext>(&has_context) : nullptr;
  return CUDA_SUCCESS;
}

namespace {

// What functions on a word of memory refuse.
CUresult refusal(const char* name, CUstream stream, CUdeviceptr address, unsigned flags) {
  if (const int planned = seen().enter(name, stream_of(stream)); planned != 0) {
    return static_cast<CUresult>(planned);
  }
  if (const cudaError_t broken = seen().device_error(current_device); broken != cudaSuccess) {
    return static_cast<CUresult>(broken);
  }
  if (!has_context) {
    seen().violate("the driver is called by a thread without a context");
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  const bool valid = is_stream(stream_of(stream)) && flags == 0 && address % 4 == 0;
  return valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

// Waits until (int32_t)(*address - value) >= 0 (CU_STREAM_WAIT_VALUE_GEQ). Refuses addresses that
// are not aligned to 4 bytes.
CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr address, cuuint32_t value,
                             unsigned flags) {
  if (const CUresult refused = refusal(__func__, stream, address, flags)) return refused;
  auto* const word = reinterpret_cast<uint32_t*>(address);
  submit(stream, [word, value] {
    // As the GPU does: nobody wakes it.
    while (static_cast<int32_t>(std::atomic_ref(*word).load(std::memory_order_acquire) - value) <
           0) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  });
  return CUDA_SUCCESS;
}

// Writes when all work before is done, which is visible before (CU_STREAM_WRITE_VALUE_DEFAULT).
CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value,
                              unsigned flags) {
  if (const CUresult refused = refusal(__func__, stream, address, flags)) return refused;
  auto* const word = reinterpret_cast<uint32_t*>(address);
  submit(stream, [word, value] { std::atomic_ref(*word).store(value, std::memory_order_release); });
  return CUDA_SUCCESS;
}

// Succeeds without a function where the driver has none; refuses versions newer than the driver.
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned version,
                                             unsigned long long /*flags*/,
                                             cudaDriverEntryPointQueryResult* found) {
  ENTER_HOST();
  *function = nullptr;
  *found = cudaDriverEntryPointSymbolNotFound;
  if (static_cast<int>(version) > seen().driver()) return result(cudaErrorInvalidValue);
  if (std::strcmp(name, "cuCtxGetCurrent") == 0 && version >= 4000) {
    *function = reinterpret_cast<void*>(&cuCtxGetCurrent);
  } else if (std::strcmp(name, "cuStreamWaitValue32") == 0 && version >= 11070) {
    *function = reinterpret_cast<void*>(&cuStreamWaitValue32);
  } else if (std::strcmp(name, "cuStreamWriteValue32") == 0 && version >= 11070) {
    *function = reinterpret_cast<void*>(&cuStreamWriteValue32);
  }
  if (*function != nullptr) *found = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
