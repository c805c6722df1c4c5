#include "device/cuda/cuda_device.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/check.h"
#include "core/format_bytes.h"
#include "device/cuda/kernels/kernels.h"
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
      inline_stream_(index, CudaStreamImpl::Priority::low, events_, flags_),
      cublas_(index) {}

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
  if (data == nullptr) refuse(request, pool_->available());
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
  const auto block = std::make_shared<Buffer>(allocate_pinned_host(index_, nbytes));
  if (!*block) {
    fail<DeviceError>(
        "{}: cannot pin {} of host memory; held now: {}. Raise the memory limit of the container "
        "(its cgroup) or `ulimit -l`, or offload less; drivers from 580 on refuse 512 GiB and more "
        "in one block",
        name_, format_bytes(nbytes), ledger_->summary());
  }
  return {block->data(), nbytes, [block, entry = account(nbytes, MemoryCategory::pinned)] {}};
}

std::shared_ptr<void> CudaDevice::account(size_t nbytes, MemoryCategory category) {
  ledger_->add(nbytes, category);
  return {ledger_.get(),
          [ledger = ledger_, nbytes, category](void*) { ledger->remove(nbytes, category); }};
}

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

template <typename Kernel, typename... Arguments>
void CudaDevice::run(Stream& stream, const char* name, const Kernel& kernel,
                     const Arguments&... arguments) {
  const cudaStream_t handle = handle_of(stream);
  const CurrentDevice current(index_);
  const ProfilerRange range(name);
  kernel(handle, arguments...);
}

void CudaDevice::upload(Stream& stream, const void* src, TensorView dst) {
  run(stream, "upload", [&](cudaStream_t handle) {
    if (dst.empty()) return;
    check_cuda(cudaMemcpyAsync(dst.data, src, dst.nbytes(), cudaMemcpyDefault, handle),
               "cudaMemcpyAsync to the device");
  });
}

void CudaDevice::download(Stream& stream, TensorView src, void* dst) {
  run(stream, "download", [&](cudaStream_t handle) {
    if (src.empty()) return;
    check_cuda(cudaMemcpyAsync(dst, src.data, src.nbytes(), cudaMemcpyDefault, handle),
               "cudaMemcpyAsync to the host");
  });
}

void CudaDevice::fill(Stream& stream, TensorView dst, float value) {
  run(stream, "fill", cuda::fill, dst, value);
}

void CudaDevice::cast(Stream& stream, TensorView src, TensorView dst) {
  check_cast(src, dst);
  run(stream, "cast", cuda::cast, src, dst);
}

void CudaDevice::add(Stream& stream, TensorView src, TensorView dst) {
  check_add(src, dst);
  run(stream, "add", cuda::add, src, dst);
}

void CudaDevice::copy(Stream& stream, std::span<const TensorCopy> copies) {
  check_copy(copies);
  run(stream, "copy", cuda::copy, copies);
}

void CudaDevice::scale(Stream& stream, TensorView dst, float factor) {
  check_scale(dst);
  run(stream, "scale", cuda::scale, dst, factor);
}

void CudaDevice::sum_of_squares(Stream& stream, TensorView src,
                                std::span<const SquaresSegment> segments, TensorView sums) {
  check_sum_of_squares(src, segments, sums);
  run(stream, "norm", cuda::sum_of_squares, src, segments, sums);
}

void CudaDevice::decide(Stream& stream, const StepEvidence& evidence, const StepRule& rule,
                        TensorView decision) {
  check_decide(evidence, decision);
  run(stream, "decide", cuda::decide, evidence, rule, decision);
}

void CudaDevice::trust_ratios(Stream& stream, TensorView sums, const TrustRatioLimits& limits,
                              TensorView ratios) {
  check_trust_ratios(sums, ratios);
  if (ratios.empty()) return;
  run(stream, "trust ratios", cuda::trust_ratios, sums, limits, ratios);
}

void CudaDevice::quantize(Stream& stream, TensorView src, TensorView dst, const Quantization& how) {
  check_quantize(src, dst, how);
  run(stream, "quantize", cuda::quantize, src, dst, how);
}

void CudaDevice::dequantize(Stream& stream, TensorView src, TensorView dst,
                            const Dequantization& how) {
  check_dequantize(src, dst, how);
  run(stream, "dequantize", cuda::dequantize, src, dst, how);
}

void CudaDevice::update(Stream& stream, const UpdateTensors& tensors,
                        std::span<const UpdateSegment> segments) {
  check_update(tensors, segments);
  run(stream, "update", cuda::update, tensors, segments);
}

void CudaDevice::orthogonalize(Stream& stream, TensorView matrix, int64_t rows, int64_t cols,
                               const Orthogonalization& how, TensorView work) {
  check_orthogonalize(matrix, rows, cols, work);
  run(stream, "orthogonalize", [&](cudaStream_t handle) {
    if (matrix.empty()) return;
    const Buffer words = scratch(cuda_stream(stream), ExactSum::kWords * sizeof(int64_t));
    cublas_.orthogonalize(handle, {matrix, rows, cols}, how,
                          {work, view_of(words, DType::int64, ExactSum::kWords)});
  });
}

}  // namespace zerorun
