// Functions of the fake CUDA runtime that Python's tests call by ctypes.

#include "testing/fake_cuda/runtime_call.h"

namespace zerorun {

namespace {

fake::FakeCuda& fake_cuda() { return fake::FakeCuda::instance(); }

}  // namespace

#define ZR_FOR_PYTHON extern "C" __attribute__((visibility("default")))

// A stream of PyTorch's. Work on it is done when it is submitted, as that of the tests' PyTorch is,
// which has CPU kernels; it waits for the engine's streams, which run beside it.
ZR_FOR_PYTHON void* fake_torch_stream() {
  auto stream = std::make_unique<CUstream_st>();
  stream->worker = make_inline_stream();
  fake_cuda().hold("streams", stream.get());
  return stream.release();  // lives as long as PyTorch's do: to the end of the process
}

// The same of the default stream, whose handle is null.
ZR_FOR_PYTHON void fake_use_default_stream() {
  fake::stream_of(nullptr)->worker = make_inline_stream();
}

// Calls that were given that stream.
ZR_FOR_PYTHON int fake_calls_on(cudaStream_t handle) {
  const void* const stream = fake::stream_of(handle);
  int count = 0;
  for (const fake::Call& call : fake_cuda().calls()) count += call.stream == stream ? 1 : 0;
  return count;
}

// Launches of kernels that take parameters of a type of that name.
ZR_FOR_PYTHON int fake_launches_of(const char* type) {
  int count = 0;
  for (const auto& [kernel, launches] : fake_cuda().launches()) {
    if (kernel.find(type) != std::string::npos) count += launches;
  }
  return count;
}

ZR_FOR_PYTHON void fake_set_delay(int microseconds) {
  fake_cuda().set_delay(std::chrono::microseconds(microseconds));
}

ZR_FOR_PYTHON int64_t fake_bytes_held() {
  return static_cast<int64_t>(fake_cuda().memory() - fake_cuda().free_memory());
}

// The most memory, with PyTorch's, since the last call.
ZR_FOR_PYTHON int64_t fake_take_peak() { return static_cast<int64_t>(fake_cuda().take_peak()); }

// True if memory is the fake GPU's.
ZR_FOR_PYTHON int fake_is_on_gpu(const void* data) {
  cudaPointerAttributes attributes = {};
  cudaPointerGetAttributes(&attributes, data);
  return attributes.type == cudaMemoryTypeDevice ? 1 : 0;
}

// A storage of PyTorch's that is marked as the GPU's, until it is freed or resized.
ZR_FOR_PYTHON void fake_adopt(const void* data, size_t bytes) {
  fake::adopt_device_memory(data, bytes);
}
ZR_FOR_PYTHON void fake_disown(const void* data) { fake::disown_device_memory(data); }

// The first call that a real library would punish; empty when there was none.
ZR_FOR_PYTHON const char* fake_violation() {
  static std::string text;
  const std::vector<std::string> violations = fake_cuda().violations();
  text = violations.empty() ? "" : violations.front();
  return text.c_str();
}

}  // namespace zerorun
