#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/cpu/cpu_stream.h"
#include "zerorun/device.h"

namespace zerorun::testing {

// Time that passes only as a test says: for the caller, and on each stream.
struct VirtualClock {
  double caller = 0.0;
  double look = 0.0;  // what it takes the caller to ask whether an event has happened
  int slept = 0;      // waits for events that had not happened
};

// The durations of operations.
struct VirtualCosts {
  double download_per_byte = 0.0;
  double upload_per_byte = 0.0;
  double update_per_element = 0.0;
};

class VirtualEvent final : public Event::State {
 public:
  VirtualEvent(VirtualClock& clock, double time) : clock_(clock), time_(time) {}
  bool ready() const override {
    clock_.caller += clock_.look;
    return time_ <= clock_.caller;
  }
  void synchronize() override {
    if (time_ > clock_.caller) ++clock_.slept;
    clock_.caller = std::max(clock_.caller, time_);
  }
  double time() const { return time_; }

 private:
  VirtualClock& clock_;
  const double time_;
};

// Does its work at once, and keeps account of when it would have been done.
class VirtualStream final : public CpuStream {
 public:
  VirtualStream(VirtualClock& clock, bool is_callers) : clock_(clock), is_callers_(is_callers) {}
  void submit(std::function<void()> task) override {
    pass(0.0);
    task();
  }
  void pass(double seconds) {
    now_ = std::max(now_, clock_.caller) + seconds;
    if (is_callers_) clock_.caller = now_;
  }
  Event record() override {
    pass(0.0);
    return Event(std::make_shared<VirtualEvent>(clock_, now_));
  }
  void wait(const Event& event) override {
    const auto* state = dynamic_cast<const VirtualEvent*>(event.state().get());
    if (state != nullptr) now_ = std::max(now_, state->time());
    if (is_callers_) clock_.caller = std::max(clock_.caller, now_);
  }
  void synchronize() override { clock_.caller = std::max(clock_.caller, now_); }
  bool is_inline() const override { return true; }

 private:
  VirtualClock& clock_;
  const bool is_callers_;
  double now_ = 0.0;
};

// A device computes on host memory, or beside a host that does.
enum class VirtualKind { host, accelerator };

// A device on which copies and updates take the time of `costs`, and nothing else takes any.
class VirtualTimeDevice final : public Device {
 public:
  VirtualTimeDevice(VirtualClock& clock, VirtualCosts costs, VirtualKind kind)
      : clock_(clock), costs_(costs), inline_(clock, true) {
    if (kind == VirtualKind::host) return;
    host_ = std::make_unique<VirtualTimeDevice>(clock, costs, VirtualKind::host);
  }

  std::string name() const override { return "virtual"; }
  Buffer allocate(size_t nbytes, MemoryCategory category) override {
    return device_->allocate(nbytes, category);
  }
  Buffer allocate_pinned(size_t nbytes) override { return device_->allocate_pinned(nbytes); }
  Device& host() override { return host_ ? *host_ : *this; }
  std::shared_ptr<void> account(size_t nbytes, MemoryCategory category) override {
    return device_->account(nbytes, category);
  }
  MemoryUse memory_use(MemoryCategory category) const override {
    return device_->memory_use(category);
  }
  std::unique_ptr<Stream> make_stream(std::string_view /*name*/) override {
    return std::make_unique<VirtualStream>(clock_, false);
  }
  Stream& inline_stream() override { return inline_; }

  void upload(Stream& stream, const void* src, TensorView dst) override {
    pass(stream, costs_.upload_per_byte * static_cast<double>(dst.nbytes()));
    device_->upload(now(), src, dst);
  }
  void download(Stream& stream, TensorView src, void* dst) override {
    pass(stream, costs_.download_per_byte * static_cast<double>(src.nbytes()));
    device_->download(now(), src, dst);
  }
  void fill(Stream& stream, TensorView dst, float value) override {
    pass(stream, 0.0);
    device_->fill(now(), dst, value);
  }
  void cast(Stream& stream, TensorView src, TensorView dst) override {
    pass(stream, 0.0);
    device_->cast(now(), src, dst);
  }
  void add(Stream& stream, TensorView src, TensorView dst) override {
    pass(stream, 0.0);
    device_->add(now(), src, dst);
  }
  void scale(Stream& stream, TensorView dst, float factor) override {
    pass(stream, 0.0);
    device_->scale(now(), dst, factor);
  }
  void sum_of_squares(Stream& stream, TensorView src, std::span<const SquaresSegment> segments,
                      TensorView sums) override {
    pass(stream, 0.0);
    device_->sum_of_squares(now(), src, segments, sums);
  }
  void decide(Stream& stream, const StepEvidence& evidence, const StepRule& rule,
              TensorView decision) override {
    pass(stream, 0.0);
    device_->decide(now(), evidence, rule, decision);
  }
  void trust_ratios(Stream& stream, TensorView sums, const TrustRatioLimits& limits,
                    TensorView ratios) override {
    pass(stream, 0.0);
    device_->trust_ratios(now(), sums, limits, ratios);
  }
  void quantize(Stream& stream, TensorView src, TensorView dst, const Quantization& how) override {
    pass(stream, 0.0);
    device_->quantize(now(), src, dst, how);
  }
  void dequantize(Stream& stream, TensorView src, TensorView dst,
                  const Dequantization& how) override {
    pass(stream, 0.0);
    device_->dequantize(now(), src, dst, how);
  }
  void update(Stream& stream, const UpdateTensors& tensors,
              std::span<const UpdateSegment> segments) override {
    for (const UpdateSegment& segment : segments) {
      pass(stream, costs_.update_per_element * static_cast<double>(segment.numel));
    }
    device_->update(now(), tensors, segments);
  }
  void orthogonalize(Stream& stream, TensorView matrix, int64_t rows, int64_t cols,
                     const Orthogonalization& how, TensorView work) override {
    pass(stream, 0.0);
    device_->orthogonalize(now(), matrix, rows, cols, how, work);
  }

 private:
  static void pass(Stream& stream, double seconds) {
    dynamic_cast<VirtualStream&>(stream).pass(seconds);
  }
  Stream& now() { return device_->inline_stream(); }

  VirtualClock& clock_;
  const VirtualCosts costs_;
  VirtualStream inline_;
  const std::shared_ptr<Device> device_ = make_cpu_device();
  std::unique_ptr<VirtualTimeDevice> host_;
};

}  // namespace zerorun::testing
