#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "device/cpu/cpu_stream.h"
#include "device/memory_ledger.h"
#include "zerorun/device.h"

namespace zerorun {

// The Device of CPU ranks: host memory and the host's cores.
class CpuDevice : public Device {
 public:
  explicit CpuDevice(const CpuDeviceOptions& options);

  std::string name() const override { return "cpu"; }

  Buffer allocate(size_t nbytes, MemoryCategory category) override;
  Buffer allocate_pinned(size_t nbytes) override {
    return allocate(nbytes, MemoryCategory::pinned);
  }
  Device& host() override { return *this; }
  std::shared_ptr<void> account(size_t nbytes, MemoryCategory category) override;
  MemoryUse memory_use(MemoryCategory category) const override { return ledger_->use(category); }

  std::unique_ptr<Stream> make_stream(std::string_view name) override;
  Stream& inline_stream() override { return *inline_stream_; }
  Subscription observe(WorkObserver observer) override;

  void upload(Stream& stream, const void* src, TensorView dst) override;
  void download(Stream& stream, TensorView src, void* dst) override;
  void fill(Stream& stream, TensorView dst, float value) override;
  void cast(Stream& stream, TensorView src, TensorView dst) override;
  void add(Stream& stream, TensorView src, TensorView dst) override;
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
  const CpuDeviceOptions options_;
  // shared with the buffers, which may outlive the device
  const std::shared_ptr<MemoryLedger> ledger_;
  const CpuStream::WorkObservers observers_ = std::make_shared<Observers<WorkSpan>>();
  const std::unique_ptr<CpuStream> inline_stream_;
};

// A block of host memory and the information needed to free it.
struct HostBlock {
  void* data = nullptr;  // null if the allocation failed
  std::function<void()> free;
};

// From this size on a block is a mapping of its own: zero, and without memory until it is written.
constexpr size_t kMappedBlock = size_t{2} << 20;

// Allocates memory, uninitialised below kMappedBlock, 64-byte aligned, and page-aligned from the
// size of a page on. Mapped blocks use huge pages if available: otherwise kernels that stream over
// several arrays spend much of their time in page walks. A freed mapping returns to the system
// immediately.
HostBlock allocate_host(size_t nbytes);

}  // namespace zerorun
