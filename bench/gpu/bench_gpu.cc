// The GPU's kernels that a step waits for, as a share of the rate at which this GPU copies memory.
// Prints one line per kernel; exits 3 where there is no GPU.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>

#include "core/check.h"
#include "device/cuda_backend.h"
#include "zerorun/exact_sum.h"

namespace zerorun {
namespace {

constexpr int64_t kNumel = int64_t{256} << 20;
constexpr int kRepeats = 20;

// Seconds of one call, the fewest of several.
double seconds_of(Device& device, const std::function<void()>& call) {
  Stream& stream = device.inline_stream();
  double best = 1e9;
  for (int round = 0; round < 5; ++round) {
    call();
    stream.synchronize();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kRepeats; ++i) call();
    stream.synchronize();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    best = std::min(best, took.count() / kRepeats);
  }
  return best;
}

void run(Device& device) {
  Stream& stream = device.inline_stream();
  const auto make = [&](DType dtype) {
    Buffer buffer = device.allocate(kNumel * size_of(dtype), MemoryCategory::other);
    device.fill(stream, view_of(buffer, dtype, kNumel), 0.0F);
    return buffer;
  };
  const Buffer buffers[] = {make(DType::fp32), make(DType::fp32), make(DType::fp32),
                            make(DType::bf16), make(DType::bf16)};
  const auto view = [&](size_t i) {
    return view_of(buffers[i], i < 3 ? DType::fp32 : DType::bf16, kNumel);
  };
  const Buffer words = device.allocate(ExactSum::kWords * 8, MemoryCategory::other);
  const TensorView sum = view_of(words, DType::int64, ExactSum::kWords);
  device.fill(stream, sum, 0.0F);

  double copy_rate = 0.0;
  const auto report = [&](std::string_view name, double bytes, const std::function<void()>& call) {
    const double rate = bytes * kNumel / seconds_of(device, call);
    if (copy_rate == 0.0) copy_rate = rate;
    fmt::print("{:<28} {:8.1f} GB/s  {:5.1f} % of copy\n", name, rate * 1e-9,
               100 * rate / copy_rate);
  };
  fmt::print("{}, {} elements\n", device.name(), kNumel);
  report("copy fp32", 8, [&] { device.cast(stream, view(0), view(1)); });
  report("cast fp32 to bf16", 6, [&] { device.cast(stream, view(0), view(3)); });
  report("add bf16 to fp32", 10, [&] { device.add(stream, view(3), view(0)); });
  const SquaresSegment squares{.numel = kNumel};
  report("sum of squares fp32", 4, [&] {
    device.sum_of_squares(stream, view(0), {&squares, 1}, sum);
  });
  report("sum of squares bf16", 2, [&] {
    device.sum_of_squares(stream, view(3), {&squares, 1}, sum);
  });
  const UpdateSegment step{.numel = kNumel};
  report("AdamW, bf16 grad and param", 28, [&] {
    device.update(
        stream,
        {.master = view(0), .grad = view(3), .param = view(4), .states = {view(1), view(2)}},
        {&step, 1});
  });
}

}  // namespace
}  // namespace zerorun

int main() {
  const std::string problem = zerorun::why_no_cuda();
  if (!problem.empty()) {
    fmt::print(stderr, "bench_gpu: {}\n", problem);
    return 3;
  }
  zerorun::run(*zerorun::make_cuda_device());
}
