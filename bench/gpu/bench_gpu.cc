// The GPU's kernels, as a share of the rate at which this GPU copies memory.
//
//   bench_gpu [--numel 268435456] [--repeats 20] [--accelerator cpu]
//
// Prints one line per kernel; exits 3 where there is no GPU. --accelerator cpu is a trial.
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "bench/gpu/rate_table.h"
#include "config/command_line.h"
#include "core/check.h"
#include "device/cuda_backend.h"
#include "zerorun/exact_sum.h"
#include "zerorun/zerorun.h"

namespace zerorun::bench {

namespace {

// Drawn once: normal numbers cost the host far more time than the GPU takes for all its kernels.
const std::vector<float>& gradient_like_numbers() {
  static const std::vector<float> numbers = [] {
    std::mt19937_64 random(1);
    std::normal_distribution<float> exponent(-4.0F, 1.0F);
    std::vector<float> drawn(size_t{1} << 22);
    for (float& value : drawn) {
      const float magnitude = std::pow(10.0F, exponent(random));
      value = (random() & 1) != 0 ? magnitude : -magnitude;
    }
    return drawn;
  }();
  return numbers;
}

}  // namespace

GradientLike::GradientLike(Device& device, int64_t numel)
    : device_(device), numel_(numel), values_(device.allocate(numel * 4, MemoryCategory::other)) {
  const std::vector<float>& numbers = gradient_like_numbers();
  Stream& stream = device.inline_stream();
  const TensorView all = view_of(values_, DType::fp32, numel);
  int64_t known = std::min<int64_t>(numel, std::ssize(numbers));
  device.upload(stream, numbers.data(), all.slice(0, known));
  while (known < numel) {  // the device repeats what it has
    const int64_t more = std::min(known, numel - known);
    device.cast(stream, all.slice(0, more), all.slice(known, more));
    known += more;
  }
  stream.synchronize();
}

Buffer GradientLike::in(DType dtype) {
  Buffer buffer =
      device_.allocate(static_cast<size_t>(numel_) * size_of(dtype), MemoryCategory::other);
  device_.cast(device_.inline_stream(), view_of(values_, DType::fp32, numel_),
               view_of(buffer, dtype, numel_));
  return buffer;
}

namespace {

constexpr UpdateScalars kAdamW = {.weight_decay = 0.1F};

// AdamW with fp32 masters, with everything in bf16, and with 8-bit states.
void show_updates(Device& device, int64_t numel, GradientLike& values, RateTable& table) {
  Stream& stream = device.inline_stream();
  const auto bytes = static_cast<double>(numel);
  const UpdateSegment step{.numel = numel, .scalars = kAdamW};
  const Buffer grad = values.in(DType::bf16);
  const Buffer param = values.in(DType::bf16);
  const TensorView grads = view_of(grad, DType::bf16, numel);
  const TensorView params = view_of(param, DType::bf16, numel);
  const auto show = [&](std::string_view name, double each, const UpdateTensors& tensors) {
    table.show(name, each * bytes, [&] { device.update(stream, tensors, {&step, 1}); });
  };
  // Second moments are not negative.
  const auto zeros = [&](DType dtype, int64_t count) {
    Buffer buffer =
        device.allocate(static_cast<size_t>(count) * size_of(dtype), MemoryCategory::other);
    device.fill(stream, view_of(buffer, dtype, count), 0.0F);
    return buffer;
  };
  {
    const Buffer state[] = {zeros(DType::bf16, numel), zeros(DType::bf16, numel)};
    show(
        "stochastic AdamW, all in bf16", 14,
        {.master = params,
         .grad = grads,
         .param = params,
         .states = {view_of(state[0], DType::bf16, numel), view_of(state[1], DType::bf16, numel)}});
  }
  const Buffer master = values.in(DType::fp32);
  const TensorView masters = view_of(master, DType::fp32, numel);
  {
    const int64_t blocks = (numel + kStateBlock - 1) / kStateBlock;
    const Buffer state[] = {zeros(DType::uint8, numel), zeros(DType::uint8, numel)};
    const Buffer scale[] = {zeros(DType::fp32, blocks), zeros(DType::fp32, blocks)};
    show(
        "8-bit AdamW, bf16 grad and param", 16,
        {.master = masters,
         .grad = grads,
         .param = params,
         .states = {view_of(state[0], DType::uint8, numel), view_of(state[1], DType::uint8, numel)},
         .scales = {view_of(scale[0], DType::fp32, blocks),
                    view_of(scale[1], DType::fp32, blocks)}});
  }
  const Buffer state[] = {zeros(DType::fp32, numel), zeros(DType::fp32, numel)};
  show("AdamW, bf16 grad and param", 28,
       {.master = masters,
        .grad = grads,
        .param = params,
        .states = {view_of(state[0], DType::fp32, numel), view_of(state[1], DType::fp32, numel)}});
}

// Casts, additions and the norm, in every dtype.
void show_elementwise(Device& device, int64_t numel, GradientLike& values, RateTable& table) {
  Stream& stream = device.inline_stream();
  const auto bytes = static_cast<double>(numel);
  const Buffer source = values.in(DType::fp32);
  const Buffer target = values.in(DType::fp32);
  const TensorView from = view_of(source, DType::fp32, numel);
  const TensorView to = view_of(target, DType::fp32, numel);
  const Buffer words = device.allocate(ExactSum::kWords * 8, MemoryCategory::other);
  const TensorView sum = view_of(words, DType::int64, ExactSum::kWords);
  device.fill(stream, sum, 0.0F);
  const SquaresSegment squares{.numel = numel};
  table.show("copy fp32", 8 * bytes, [&] { device.cast(stream, from, to); });
  table.show("scale fp32", 8 * bytes, [&] { device.scale(stream, to, 1.0F); });
  table.show("sum of squares fp32", 4 * bytes, [&] {
    device.sum_of_squares(stream, from, {&squares, 1}, sum);
  });
  table.show("fill fp32", 4 * bytes, [&] { device.fill(stream, to, 0.0F); });
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    const Buffer buffer = values.in(dtype);
    const TensorView narrow = view_of(buffer, dtype, numel);
    const auto show = [&](const std::string& name, double each, const std::function<void()>& call) {
      table.show(name, each * bytes, call);
    };
    const std::string name(name_of(dtype));
    show("cast fp32 to " + name, 6, [&] { device.cast(stream, from, narrow); });
    show("cast " + name + " to fp32", 6, [&] { device.cast(stream, narrow, to); });
    show("add " + name + " to fp32", 10, [&] { device.add(stream, narrow, to); });
    show("sum of squares " + name, 2, [&] {
      device.sum_of_squares(stream, narrow, {&squares, 1}, sum);
    });
  }
}

// What a step launches besides: gradients into their bucket, decision and trust ratios.
void show_step(Device& device, int64_t numel, GradientLike& values, RateTable& table) {
  Stream& stream = device.inline_stream();
  constexpr int64_t kTensors = 100;
  const Buffer source = values.in(DType::bf16);
  const Buffer target = values.in(DType::bf16);
  std::vector<TensorCopy> copies;
  for (int64_t i = 0; i < kTensors; ++i) {
    const int64_t begin = i * numel / kTensors;
    const int64_t count = (i + 1) * numel / kTensors - begin;
    copies.push_back({view_of(source, DType::bf16, numel).slice(begin, count),
                      view_of(target, DType::bf16, numel).slice(begin, count)});
  }
  table.show(fmt::format("copy {} tensors bf16", kTensors), 4 * static_cast<double>(numel),
             [&] { device.copy(stream, copies); });
  const Buffer sums =
      device.allocate(2 * kTensors * ExactSum::kWords * sizeof(int64_t), MemoryCategory::other);
  const TensorView words = view_of(sums, DType::int64, 2 * kTensors * ExactSum::kWords);
  const Buffer results = device.allocate(kTensors * sizeof(float), MemoryCategory::other);
  device.fill(stream, words, 0.0F);
  const StepEvidence evidence{.words = words.slice(0, ExactSum::kWords),
                              .votes = words.slice(ExactSum::kWords, 2),
                              .same = words.slice(ExactSum::kWords, 2),
                              .ranks = 1};
  table.show_ms("decide", [&] {
    device.decide(stream, evidence, {.max_norm = 1.0}, view_of(results, DType::fp32, 2));
  });
  table.show_ms(fmt::format("trust ratios of {} parameters", kTensors), [&] {
    device.trust_ratios(stream, words, {.smallest = 0.01, .largest = 10.0},
                        view_of(results, DType::fp32, kTensors));
  });
}

// What ZeRO++ sends between hosts.
void show_quantization(Device& device, int64_t numel, GradientLike& values, RateTable& table) {
  Stream& stream = device.inline_stream();
  const int64_t count = numel / kQuantizedBlock * kQuantizedBlock;
  const Buffer source = values.in(DType::bf16);
  const Buffer target = values.in(DType::bf16);
  const TensorView from = view_of(source, DType::bf16, count);
  const TensorView to = view_of(target, DType::bf16, count);
  for (const int bits : {8, 4}) {
    const int64_t nbytes = quantized_nbytes(count, bits);
    const Buffer packed = device.allocate(static_cast<size_t>(nbytes), MemoryCategory::other);
    const TensorView view = view_of(packed, DType::uint8, nbytes);
    const auto moved = static_cast<double>(2 * count + nbytes);
    table.show(fmt::format("quantize bf16 to {} bits", bits), moved,
               [&] { device.quantize(stream, from, view, {.bits = bits}); });
    table.show(fmt::format("dequantize {} bits to bf16", bits), moved,
               [&] { device.dequantize(stream, view, to, {.bits = bits}); });
  }
}

void run(Device& device, int64_t numel, int repeats) {
  RateTable table(device, repeats);
  fmt::print("{}, {} elements\n", device.name(), numel);
  GradientLike values(device, numel);
  show_elementwise(device, numel, values, table);
  show_step(device, numel, values, table);
  show_quantization(device, numel, values, table);
  show_updates(device, numel, values, table);
  show_train_kernels(device, numel / 8, table);
}

}  // namespace
}  // namespace zerorun::bench

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // what was measured before a kill is kept
  int64_t numel = int64_t{256} << 20;
  int repeats = 20;
  zerorun::Accelerator accelerator = zerorun::Accelerator::cuda;
  CLI::App app("The GPU's kernels beside a copy of memory");
  app.add_option("--numel", numel)->check(CLI::Range(int64_t{1} << 16, int64_t{1} << 31));
  app.add_option("--repeats", repeats)->check(CLI::Range(1, 1000));
  zerorun::add_accelerator(app, accelerator);
  CLI11_PARSE(app, argc, argv);
  const std::string problem = zerorun::why_no_cuda();
  if (accelerator == zerorun::Accelerator::cuda && !problem.empty()) {
    fmt::print(stderr, "bench_gpu: {}\n", problem);
    return 3;
  }
  zerorun::bench::run(*zerorun::make_device(accelerator), numel, repeats);
}
