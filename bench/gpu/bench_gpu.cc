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

TensorView GradientLike::in(DType dtype) {
  const TensorView view = memory_.make(dtype, numel_, 0.0F);
  cast_to(view);
  return view;
}

void GradientLike::cast_to(const TensorView& view) const {
  device_.cast(device_.inline_stream(), view_of(values_, DType::fp32, numel_), view);
}

namespace {

constexpr UpdateScalars kAdamW = {.weight_decay = 0.1F};

// AdamW with fp32 masters, with everything in bf16, and with 8-bit states.
void show_updates(Device& device, int64_t numel, GradientLike& values, RateTable& table) {
  Stream& stream = device.inline_stream();
  const auto bytes = static_cast<double>(numel);
  const UpdateSegment step{.numel = numel, .scalars = kAdamW};
  const TensorView grads = values.in(DType::bf16);
  const TensorView params = values.in(DType::bf16);
  // Second moments are not negative.
  const auto show = [&](std::string_view name, double each, DType states, const TensorView& master,
                        int64_t blocks = 0) {
    Tensors zeros(device);
    UpdateTensors tensors = {.master = master, .grad = grads, .param = params};
    for (TensorView& state : tensors.states) state = zeros.make(states, numel, 0.0F);
    for (TensorView& scale : tensors.scales) {
      if (blocks > 0) scale = zeros.make(DType::fp32, blocks, 0.0F);
    }
    table.show(name, each * bytes, [&] { device.update(stream, tensors, {&step, 1}); });
  };
  show("stochastic AdamW, all in bf16", 14, DType::bf16, params);
  const TensorView masters = values.in(DType::fp32);
  show("8-bit AdamW, bf16 grad and param", 16, DType::uint8, masters,
       (numel + kStateBlock - 1) / kStateBlock);
  show("AdamW, bf16 grad and param", 28, DType::fp32, masters);
  values.release();
}

// Casts, additions and the norm, in every dtype.
void show_elementwise(Device& device, int64_t numel, GradientLike& values, RateTable& table) {
  Stream& stream = device.inline_stream();
  const auto bytes = static_cast<double>(numel);
  const TensorView from = values.in(DType::fp32);
  const TensorView to = values.in(DType::fp32);
  const TensorView sum = values.zeros(DType::int64, ExactSum::kWords);
  const SquaresSegment squares{.numel = numel};
  table.show("copy fp32", 8 * bytes, [&] { device.cast(stream, from, to); });
  table.show("scale fp32", 8 * bytes, [&] { device.scale(stream, to, 1.0F); });
  table.show("sum of squares fp32", 4 * bytes, [&] {
    device.sum_of_squares(stream, from, {&squares, 1}, sum);
  });
  table.show("fill fp32", 4 * bytes, [&] { device.fill(stream, to, 0.0F); });
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    const TensorView narrow = values.in(dtype);
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
  values.release();
}

// What a step launches besides: gradients into their bucket, decision and trust ratios.
void show_step(Device& device, int64_t numel, GradientLike& values, RateTable& table) {
  Stream& stream = device.inline_stream();
  constexpr int64_t kTensors = 100;
  const TensorView source = values.in(DType::bf16);
  const TensorView target = values.in(DType::bf16);
  std::vector<TensorCopy> copies;
  for (int64_t i = 0; i < kTensors; ++i) {
    const int64_t begin = i * numel / kTensors;
    const int64_t count = (i + 1) * numel / kTensors - begin;
    copies.push_back({source.slice(begin, count), target.slice(begin, count)});
  }
  table.show(fmt::format("copy {} tensors bf16", kTensors), 4 * static_cast<double>(numel),
             [&] { device.copy(stream, copies); });
  const TensorView words = values.zeros(DType::int64, 2 * kTensors * ExactSum::kWords);
  const TensorView results = values.zeros(DType::fp32, kTensors);
  const StepEvidence evidence{.words = words.slice(0, ExactSum::kWords),
                              .votes = words.slice(ExactSum::kWords, 2),
                              .same = words.slice(ExactSum::kWords, 2),
                              .ranks = 1};
  table.show_ms("decide",
                [&] { device.decide(stream, evidence, {.max_norm = 1.0}, results.slice(0, 2)); });
  table.show_ms(fmt::format("trust ratios of {} parameters", kTensors), [&] {
    device.trust_ratios(stream, words, {.smallest = 0.01, .largest = 10.0}, results);
  });
  values.release();
}

// What ZeRO++ sends between hosts.
void show_quantization(Device& device, int64_t numel, GradientLike& values, RateTable& table) {
  Stream& stream = device.inline_stream();
  const int64_t count = numel / kQuantizedBlock * kQuantizedBlock;
  const TensorView from = values.in(DType::bf16).slice(0, count);
  const TensorView to = values.in(DType::bf16).slice(0, count);
  for (const int bits : {8, 4}) {
    const int64_t nbytes = quantized_nbytes(count, bits);
    const TensorView view = values.zeros(DType::uint8, nbytes);
    const auto moved = static_cast<double>(2 * count + nbytes);
    table.show(fmt::format("quantize bf16 to {} bits", bits), moved,
               [&] { device.quantize(stream, from, view, {.bits = bits}); });
    table.show(fmt::format("dequantize {} bits to bf16", bits), moved,
               [&] { device.dequantize(stream, view, to, {.bits = bits}); });
  }
  values.release();
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
