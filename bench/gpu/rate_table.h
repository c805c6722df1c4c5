#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string_view>

#include "bench/harness.h"
#include "zerorun/device.h"

// Prints kernels with the rate at which they move memory, beside a copy's.
namespace zerorun::bench {

class RateTable {
 public:
  RateTable(Device& device, int repeats) : device_(device), repeats_(repeats) {}

  // `bytes`: read and written, at least. The first kernel is what the others are compared with.
  void show(std::string_view name, double bytes, const std::function<void()>& call) {
    const double rate = bytes / seconds_of(call);
    if (copy_rate_ == 0.0) copy_rate_ = rate;
    fmt::print("{:<36} {:8.1f} GB/s  {:5.1f} % of copy\n", name, rate * 1e-9,
               100 * rate / copy_rate_);
  }
  void show_ms(std::string_view name, const std::function<void()>& call) {
    fmt::print("{:<36} {:8.3f} ms\n", name, seconds_of(call) * 1e3);
  }
  // What `with` takes more than `without`, beside a copy of the `bytes` that it moves more.
  void show_added(std::string_view name, double bytes, const std::function<void()>& without,
                  const std::function<void()>& with) {
    const double more = seconds_of(with) - seconds_of(without);
    fmt::print("{:<36} {:8.3f} ms  a copy: {:.3f} ms\n", name, more * 1e3,
               bytes / copy_rate_ * 1e3);
  }
  // Two ways to do the same.
  void show_choice(std::string_view name, const std::function<void()>& fused,
                   const std::function<void()>& separate) {
    const double one = seconds_of(fused);
    const double other = seconds_of(separate);
    fmt::print("{:<36} {:8.3f} ms  as kernels of their own: {:.3f} ms, {:.2f} x\n", name, one * 1e3,
               other * 1e3, other / one);
  }

 private:
  // Of one call, the fewest of several rounds.
  double seconds_of(const std::function<void()>& call) {
    Stream& stream = device_.inline_stream();
    double best = 1e9;
    for (int round = 0; round < 5; ++round) {
      call();
      stream.synchronize();
      const double begin = now();
      for (int i = 0; i < repeats_; ++i) call();
      stream.synchronize();
      best = std::min(best, (now() - begin) / repeats_);
    }
    return best;
  }

  Device& device_;
  const int repeats_;
  double copy_rate_ = 0.0;
};

// Numbers with the spread of a model's gradients: signs, and magnitudes of about 1e-7 to 1e-1.
// Zeros would spare the norm and the updates most of their work.
class GradientLike {
 public:
  GradientLike(Device& device, int64_t numel);
  // `numel` of them, in `dtype`, until the next release().
  TensorView in(DType dtype);
  void cast_to(const TensorView& view) const;
  TensorView zeros(DType dtype, int64_t numel) { return memory_.make(dtype, numel, 0.0F); }
  void release() { memory_ = Tensors(device_); }

 private:
  Device& device_;
  const int64_t numel_;
  Buffer values_;  // fp32
  Tensors memory_{device_};
};

// The kernels of `train` on as many rows of GPT-2's width as `numel` elements are.
void show_train_kernels(Device& device, int64_t numel, RateTable& table);

}  // namespace zerorun::bench
