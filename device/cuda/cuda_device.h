#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "device/cuda/libraries/cublas.h"
#include "device/cuda/runtime/cuda_memory.h"
#include "device/cuda/runtime/cuda_stream_impl.h"
#include "device/memory_ledger.h"
#include "zerorun/device.h"

namespace zerorun {

class CudaDevice final : public Device {
 public:
  // `index` among the visible GPUs.
  CudaDevice(int index, size_t memory_limit);

  std::string name() const override { return name_; }
  int index() const { return index_; }

  Buffer allocate(size_t nbytes, MemoryCategory category) override;
  Buffer allocate_pinned(size_t nbytes) override;
  Device& host() override { return *host_; }
  std::shared_ptr<void> account(size_t nbytes, MemoryCategory category) override;
  MemoryUse memory_use(MemoryCategory category) const override { return ledger_->use(category); }
  // Returns the bytes that are left of the limit, counting kept memory as free.
  size_t room() const;
  // Releases as much kept memory as `nbytes` more, at most room(), need within the limit.
  void make_room_within_limit(size_t nbytes);
  // Allocates within the limit, without counting; the caller does that with account().
  Buffer allocate_uncounted(const MemoryRequest& request);
  // Lets kernels on another GPU of this process use this device's memory.
  void share_memory_with(int peer) { pool_->share_with(peer); }
  // Allocates memory for work on one stream only, counted as `other`; freed in the stream's order.
  Buffer scratch(const CudaStream& stream, size_t nbytes);

  std::unique_ptr<Stream> make_stream(std::string_view name) override;
  Stream& inline_stream() override { return inline_stream_; }
  std::optional<int> gpu() const override { return index_; }
  void use_inline_stream(void* handle) override;
  void use_reclaimer(const std::function<void()>& reclaim) override { reclaim_ = reclaim; }
  void trim_unused() override;
  bool release_kept() override;
  void use_memory_adviser(const MemoryAdviser& adviser) override { adviser_ = adviser; }

  void upload(Stream& stream, const void* src, TensorView dst) override;
  void download(Stream& stream, TensorView src, void* dst) override;
  void fill(Stream& stream, TensorView dst, float value) override;
  void cast(Stream& stream, TensorView src, TensorView dst) override;
  void add(Stream& stream, TensorView src, TensorView dst) override;
  void copy(Stream& stream, std::span<const TensorCopy> copies) override;
  void scale(Stream& stream, TensorView dst, float factor) override;
  void sum_of_squares(Stream& stream, TensorView src, std::span<const SquaresSegment> segments,
                      TensorView sums) override;
  void decide(Stream& stream, const StepEvidence& evidence, const StepRule& rule,
              TensorView decision) override;
  void trust_ratios(Stream& stream, TensorView sums, const TrustRatioLimits& limits,
                    TensorView ratios) override;
  void quantize(Stream& stream, TensorView src, TensorView dst, const Quantization& how) override;
  void dequantize(Stream& stream, TensorView src, TensorView dst,
                  const Dequantization& how) override;
  void update(Stream& stream, const UpdateTensors& tensors,
              std::span<const UpdateSegment> segments) override;
  void orthogonalize(Stream& stream, TensorView matrix, int64_t rows, int64_t cols,
                     const Orthogonalization& how, TensorView work) override;

 private:
  // Throws InternalError if the stream is another device's.
  cudaStream_t handle_of(Stream& stream) const;
  // Calls kernel(handle of the stream, arguments...) with this as the thread's current device, and
  // under this name in profilers.
  template <typename Kernel, typename... Arguments>
  void run(Stream& stream, const char* name, const Kernel& kernel, const Arguments&... arguments);
  // bytes that the pool keeps for reuse
  size_t kept() const { return static_cast<size_t>(ledger_->use(MemoryCategory::kept).live_bytes); }
  [[noreturn]] void refuse(const MemoryRequest& request, size_t room) const;
  // Returns the result of `allocate`, within the limit. If that is null, because the device has no
  // more memory, tries again after the pool, and again after other allocators, have released
  // theirs.
  void* take(const MemoryRequest& request, const std::function<void*()>& allocate);

  const int index_;
  const size_t memory_limit_;  // 0: none
  const std::string name_;
  const std::shared_ptr<MemoryLedger> ledger_;  // shared with the buffers, which may live longer
  const std::shared_ptr<CudaPool> pool_;        // likewise
  const std::shared_ptr<EventPool> events_;     // likewise, and with streams
  const std::shared_ptr<HostFlags> flags_;      // likewise
  const std::shared_ptr<Device> host_;
  CudaStreamImpl inline_stream_;
  std::function<void()> reclaim_;
  MemoryAdviser adviser_;
  Cublas cublas_;
};

}  // namespace zerorun
