#include "device/cuda/cuda_device.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/check.h"
#include "core/format_bytes.h"
#include "device/cuda/kernels/kernels.h"
#include "device/cuda/libraries/orthogonalize.h"
#include "device/cuda/profiler_range.h"
#include "device/cuda/runtime/cuda_error.h"
#include "device/cuda/runtime/current_device.h"
#include "device/device_calls.h"
#include "device/drain.h"
#include "zerorun/exact_sum.h"
#include "zerorun/out_of_memory.h"

namespace zerorun {

namespace {

std::string describe(int index) {
  cudaDeviceProp properties = {};
  check_cuda(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  return fmt::format("cuda:{} ({})", index, properties.name);
}

// What a call of CUDA on a stream needs while it is made: the stream's device is the thread's
// current one, and profilers know the call's name.
struct KernelCall {
  KernelCall(int device, cudaStream_t stream, const char* name)
      : handle(stream), current(device), range(name) {}
  const cudaStream_t handle;
  const CurrentDevice current;
  const ProfilerRange range;
};

}  // namespace

CudaDevice::CudaDevice(int index, size_t memory_limit)
    : index_(index),
      memory_limit_(memory_limit),
      name_(describe(index)),
      ledger_(std::make_shared<MemoryLedger>()),
      pool_(std::make_shared<CudaPool>(index, ledger_)),
      events_(std::make_shared<EventPool>(index)),
      flags_(std::make_shared<HostFlags>(index)),
      host_(make_cpu_device()),
      inline_stream_(index, CudaStreamImpl::Priority::low, events_, flags_) {}

Buffer CudaDevice::allocate(size_t nbytes, MemoryCategory category) {
  const auto block =
      std::make_shared<Buffer>(allocate_uncounted({nbytes, category, name_of(category)}));
  // Block and entry end with the result.
  return {block->data(), nbytes, [block, entry = account(nbytes, category)] {}};
}

Buffer CudaDevice::allocate_uncounted(const MemoryRequest& request) {
  const size_t nbytes = request.nbytes;
  void* data = nbytes <= room() ? pool_->reuse(nbytes) : nullptr;
  if (data == nullptr) data = take(request, [&] { return pool_->allocate(nbytes); });
  return {data, nbytes, [data, nbytes, pool = pool_] { pool->free(data, nbytes); }};
}

Buffer CudaDevice::scratch(const CudaStream& stream, size_t nbytes) {
  void* const data = take({nbytes, MemoryCategory::other, "work in between"},
                          [&] { return pool_->allocate(nbytes, stream.handle()); });
  return {data, nbytes,
          [data, pool = pool_, handle = stream.handle(),
           entry = account(nbytes, MemoryCategory::other)] { pool->free(data, handle); }};
}

void* CudaDevice::take(const MemoryRequest& request, const std::function<void*()>& allocate) {
  if (request.nbytes > room()) refuse(request, room());
  make_room_within_limit(request.nbytes);
  void* data = allocate();
  if (data == nullptr) {
    release_kept();
    data = allocate();
  }
  if (data == nullptr && reclaim_) {
    reclaim_();
    data = allocate();
  }
  if (data == nullptr) refuse(request, pool_->available().free);
  return data;
}

size_t CudaDevice::room() const {
  if (memory_limit_ == 0) return SIZE_MAX;
  return memory_limit_ - std::min(static_cast<size_t>(ledger_->live_bytes()), memory_limit_);
}

void CudaDevice::make_room_within_limit(size_t nbytes) {
  if (memory_limit_ == 0) return;
  const size_t held = static_cast<size_t>(ledger_->live_bytes()) + kept();
  if (held + nbytes <= memory_limit_) return;
  drain(inline_stream_);  // work that was submitted before a block was freed may still use it
  pool_->trim(held + nbytes - memory_limit_);
}

// Work that was submitted before a block was freed may still use it.
bool CudaDevice::release_kept() {
  const bool any = kept() > 0;
  drain(inline_stream_);
  pool_->trim(SIZE_MAX);
  return any;
}

// A step that uses the same blocks as the one before does not wait.
void CudaDevice::trim_unused() {
  if (!pool_->end_step()) return;
  drain(inline_stream_);
  pool_->trim_unused();
}

size_t CudaDevice::kept() const {
  return static_cast<size_t>(ledger_->use(MemoryCategory::kept).live_bytes);
}

void CudaDevice::refuse(const MemoryRequest& request, size_t room) const {
  const auto& [nbytes, category, purpose] = request;
  const std::string advice =
      adviser_ ? adviser_(ledger_->shortage(request, nbytes - std::min(nbytes, room))) : "";
  fail<OutOfMemory>("{}: cannot allocate {} for {}: {} free{}; held now: {}; kept for reuse {}{}{}",
                    name_, format_bytes(nbytes), purpose, format_bytes(room),
                    memory_limit_ == 0
                        ? std::string()
                        : fmt::format(" of the limit of {}", format_bytes(memory_limit_)),
                    ledger_->summary(), format_bytes(kept()), advice.empty() ? "" : ". ", advice);
}

Buffer CudaDevice::allocate_pinned(size_t nbytes) {
  PinnedBlock block = allocate_pinned_host(index_, nbytes);
  if (block.data == nullptr) {
    fail<DeviceError>(
        "{}: cannot pin {} of host memory; held now: {}. Raise the memory limit of the container "
        "(its cgroup) or `ulimit -l`, or offload less",
        name_, format_bytes(nbytes), ledger_->summary());
  }
  ledger_->add(nbytes, MemoryCategory::pinned);
  return {block.data, nbytes, [block, ledger = ledger_, nbytes] {
            block.free();
            ledger->remove(nbytes, MemoryCategory::pinned);
          }};
}

std::shared_ptr<void> CudaDevice::account(size_t nbytes, MemoryCategory category) {
  ledger_->add(nbytes, category);
  return {ledger_.get(),
          [ledger = ledger_, nbytes, category](void*) { ledger->remove(nbytes, category); }};
}

MemoryUse CudaDevice::memory_use(MemoryCategory category) const { return ledger_->use(category); }

// Concurrent streams have communication and copies, for which others wait: hence the priority.
std::unique_ptr<Stream> CudaDevice::make_stream(std::string_view name) {
  auto stream =
      std::make_unique<CudaStreamImpl>(index_, CudaStreamImpl::Priority::high, events_, flags_);
  name_in_profilers(stream->handle(), std::string(name).c_str());
  return stream;
}

void CudaDevice::use_inline_stream(void* handle) {
  auto* const stream = static_cast<cudaStream_t>(handle);
  if (stream == inline_stream_.handle()) return;
  const CurrentDevice current(index_);  // a null handle is the default stream of this device
  const Event before = inline_stream_.record();
  inline_stream_.borrow(stream);
  inline_stream_.wait(before);
}

cudaStream_t CudaDevice::handle_of(Stream& stream) const {
  const CudaStream& cuda = cuda_stream(stream);
  ZR_CHECK(cuda.device() == index_, "got a stream of cuda:{}, expected one of cuda:{}",
           cuda.device(), index_);
  return cuda.handle();
}

void CudaDevice::upload(Stream& stream, const void* src, TensorView dst) {
  const KernelCall call(index_, handle_of(stream), "upload");
  if (dst.empty()) return;
  check_cuda(cudaMemcpyAsync(dst.data, src, dst.nbytes(), cudaMemcpyDefault, call.handle),
             "cudaMemcpyAsync to the device");
}

void CudaDevice::download(Stream& stream, TensorView src, void* dst) {
  const KernelCall call(index_, handle_of(stream), "download");
  if (src.empty()) return;
  check_cuda(cudaMemcpyAsync(dst, src.data, src.nbytes(), cudaMemcpyDefault, call.handle),
             "cudaMemcpyAsync to the host");
}

void CudaDevice::fill(Stream& stream, TensorView dst, float value) {
  const KernelCall call(index_, handle_of(stream), "fill");
  cuda::fill(call.handle, dst, value);
}

void CudaDevice::cast(Stream& stream, TensorView src, TensorView dst) {
  check_cast(src, dst);
  const KernelCall call(index_, handle_of(stream), "cast");
  cuda::cast(call.handle, src, dst);
}

void CudaDevice::add(Stream& stream, TensorView src, TensorView dst) {
  check_add(src, dst);
  const KernelCall call(index_, handle_of(stream), "add");
  cuda::add(call.handle, src, dst);
}

void CudaDevice::copy(Stream& stream, std::span<const TensorCopy> copies) {
  check_copy(copies);
  const KernelCall call(index_, handle_of(stream), "copy");
  cuda::copy(call.handle, copies);
}

void CudaDevice::scale(Stream& stream, TensorView dst, float factor) {
  check_scale(dst);
  const KernelCall call(index_, handle_of(stream), "scale");
  cuda::scale(call.handle, dst, factor);
}

void CudaDevice::sum_of_squares(Stream& stream, TensorView src,
                                std::span<const SquaresSegment> segments, TensorView sums) {
  check_sum_of_squares(src, segments, sums);
  const KernelCall call(index_, handle_of(stream), "norm");
  cuda::sum_of_squares(call.handle, src, segments, sums);
}

void CudaDevice::decide(Stream& stream, const StepEvidence& evidence, const StepRule& rule,
                        TensorView decision) {
  check_decide(evidence, decision);
  const KernelCall call(index_, handle_of(stream), "decide");
  cuda::decide(call.handle, evidence, rule, decision);
}

void CudaDevice::trust_ratios(Stream& stream, TensorView sums, const TrustRatioLimits& limits,
                              TensorView ratios) {
  check_trust_ratios(sums, ratios);
  if (ratios.empty()) return;
  const KernelCall call(index_, handle_of(stream), "trust ratios");
  cuda::trust_ratios(call.handle, sums, limits, ratios);
}

void CudaDevice::quantize(Stream& stream, TensorView src, TensorView dst, const Quantization& how) {
  check_quantize(src, dst, how);
  const KernelCall call(index_, handle_of(stream), "quantize");
  cuda::quantize(call.handle, src, dst, how);
}

void CudaDevice::dequantize(Stream& stream, TensorView src, TensorView dst,
                            const Dequantization& how) {
  check_dequantize(src, dst, how);
  const KernelCall call(index_, handle_of(stream), "dequantize");
  cuda::dequantize(call.handle, src, dst, how);
}

void CudaDevice::update(Stream& stream, const UpdateTensors& tensors,
                        std::span<const UpdateSegment> segments) {
  check_update(tensors, segments);
  const KernelCall call(index_, handle_of(stream), "update");
  cuda::update(call.handle, tensors, segments);
}

void CudaDevice::orthogonalize(Stream& stream, TensorView matrix, int64_t rows, int64_t cols,
                               const Orthogonalization& how, TensorView work) {
  check_orthogonalize(matrix, rows, cols, work);
  const KernelCall call(index_, handle_of(stream), "orthogonalize");
  if (matrix.empty()) return;
  const Buffer words = scratch(cuda_stream(stream), ExactSum::kWords * sizeof(int64_t));
  const std::lock_guard lock(mutex_);
  if (!cublas_) cublas_ = std::make_unique<Cublas>(index_);
  cuda::orthogonalize(*cublas_, call.handle, {matrix, rows, cols}, how,
                      {work, view_of(words, DType::int64, ExactSum::kWords)});
}

}  // namespace zerorun
