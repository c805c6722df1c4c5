// Measures how close the optimizer's kernels come to the memory's bandwidth: each beside a kernel
// that moves the same bytes and computes nothing, in the same run, interleaved; best of all
// repetitions. And how many parameters states of fewer bytes update in the time of one of AdamW's.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "bench/harness.h"
#include "bench/optimizer/copy_kernels.h"
#include "core/parallel.h"
#include "zerorun/exact_sum.h"

namespace zerorun::bench {
namespace {

constexpr int64_t kNumel = 43'000'000 / 4096 * 4096;
constexpr int kRepetitions = 10;

struct Row {
  std::string label;
  double bytes = 0;                           // moved by one call of each
  std::function<void()> kernel;               // what is measured
  std::vector<std::function<void()>> bounds;  // the fastest is what it is compared with
  bool is_small = false;  // compared with AdamW's parameters per second, not with a copy
};

// One training state per dtype; the fp32 states are shared.
class Data {
 public:
  std::vector<Row> rows() {
    const UpdateTensors narrow = with_16_bit_master(tensors16_);
    const UpdateTensors bits8 = in_8_bits(tensors16_);
    const UpdateTensors bits16 = in_16_bits(narrow);
    return {adam_row("adamw bf16 grad, bf16 param", tensors16_, 28),
            adam_row("adamw fp32 grad, fp32 param", tensors32_, 28),
            norm_row("norm bf16", tensors16_.grad),
            norm_row("norm fp32", tensors32_.grad),
            small_row("8-bit states", bits8),
            small_row("8-bit states, bf16 master", in_8_bits(narrow)),
            small_row("bf16 states and master", bits16),
            small_row("adamw, 4096 at a time", tensors16_, 4096),
            small_row("8-bit states, 4096 at a time", bits8, 4096),
            small_row("bf16 states, 4096 at a time", bits16, 4096)};
  }

 private:
  TensorView make(DType dtype, float value, int64_t numel = kNumel) {
    return memory_.make(dtype, numel, value);
  }
  static UpdateTensors with_16_bit_master(UpdateTensors tensors) {
    tensors.master = tensors.param;
    return tensors;
  }
  UpdateTensors in_16_bits(UpdateTensors tensors) {
    tensors.states = {make(DType::bf16, 1e-3F), make(DType::bf16, 1e-6F)};
    return tensors;
  }
  UpdateTensors in_8_bits(UpdateTensors tensors) {
    tensors.states = {make(DType::uint8, 127.0F), make(DType::uint8, 255.0F)};
    tensors.scales = {make(DType::fp32, 1e-3F, kNumel / kStateBlock),
                      make(DType::fp32, 1e-3F, kNumel / kStateBlock)};
    return tensors;
  }
  // `segment`: elements of a parameter.
  Row small_row(std::string label, const UpdateTensors& tensors, int64_t segment = kNumel) {
    Row row = adam_row(std::move(label), tensors, 0, segment);
    row.bounds.clear();
    row.is_small = true;
    return row;
  }

  Row adam_row(std::string label, const UpdateTensors& tensors, double bytes,
               int64_t segment = kNumel) {
    std::vector<UpdateSegment> segments;
    for (int64_t begin = 0; begin < kNumel; begin += segment) {
      segments.push_back({.begin = begin, .numel = segment, .scalars = {.weight_decay = 0.01F}});
    }
    const auto step = [this, tensors, segments] {
      device_->update(device_->inline_stream(), tensors, segments);
    };
    return {std::move(label),
            bytes * kNumel,
            step,
            {[tensors] { copy_like_adam(tensors, false); },
             [tensors] { copy_like_adam(tensors, true); }}};
  }
  Row norm_row(std::string label, TensorView grad) {
    const auto norm = [this, grad] {
      ExactSum sum;
      const SquaresSegment all{.numel = grad.numel};
      device_->sum_of_squares(device_->inline_stream(), grad, {&all, 1},
                              view_of(std::span<int64_t>(sum.words)));
      benchmark::DoNotOptimize(sum);
    };
    return {std::move(label), static_cast<double>(grad.nbytes()), norm, {[grad] {
              benchmark::DoNotOptimize(read_like_norm(grad));
            }}};
  }

  const std::shared_ptr<Device> device_ = make_cpu_device();
  Tensors memory_{*device_};
  const UpdateTensors tensors16_ = {.master = make(DType::fp32, 1.0F),
                                    .grad = make(DType::bf16, 1e-3F),
                                    .param = make(DType::bf16, 1.0F),
                                    .states = {make(DType::fp32, 1e-3F), make(DType::fp32, 1e-6F)}};
  const UpdateTensors tensors32_ = {.master = tensors16_.master,
                                    .grad = make(DType::fp32, 1e-3F),
                                    .param = tensors16_.master,
                                    .states = tensors16_.states};
};

// Keeps the best time of each benchmark.
class BestTimes : public benchmark::ConsoleReporter {
 public:
  bool ReportContext(const Context& /*context*/) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      if (run.run_type != Run::RT_Iteration) continue;
      const double seconds = run.real_accumulated_time / static_cast<double>(run.iterations);
      const auto [entry, added] = best_.try_emplace(run.run_name.function_name, seconds);
      if (!added) entry->second = std::min(entry->second, seconds);
    }
  }
  // Infinity for a benchmark that was filtered out.
  double seconds(const std::string& name) const {
    const auto entry = best_.find(name);
    return entry == best_.end() ? std::numeric_limits<double>::infinity() : entry->second;
  }

 private:
  std::map<std::string, double> best_;
};

std::string name_of_run(const Row& row, int threads, int bound) {
  return fmt::format("{}/{}/{}", row.label, threads, bound);
}

void add_benchmark(const std::string& name, int threads, const std::function<void()>& call) {
  benchmark::RegisterBenchmark(name.c_str(),
                               [threads, call](benchmark::State& state) {
                                 set_threads(threads);
                                 for ([[maybe_unused]] const auto iteration : state) call();
                               })
      ->Repetitions(kRepetitions)
      ->Iterations(1)
      ->UseRealTime();
}

void print_table(const std::vector<Row>& rows, const std::vector<int>& threads,
                 const BestTimes& times) {
  fmt::print("{} elements, best of {}\n", kNumel, kRepetitions);
  fmt::print("{:30} {:>7} {:>10} {:>11} {:>6}\n", "kernel", "threads", "GB/s", "bound GB/s",
             "ratio");
  for (const int count : threads) {
    for (const Row& row : rows) {
      if (row.is_small) continue;
      const double kernel = times.seconds(name_of_run(row, count, -1));
      double bound = times.seconds(name_of_run(row, count, 0));
      for (int i = 1; i < static_cast<int>(row.bounds.size()); ++i) {
        bound = std::min(bound, times.seconds(name_of_run(row, count, i)));
      }
      if (!std::isfinite(kernel + bound)) continue;
      fmt::print("{:30} {:>7} {:>10.1f} {:>11.1f} {:>6.2f}\n", row.label, count,
                 row.bytes / kernel * 1e-9, row.bytes / bound * 1e-9, bound / kernel);
    }
  }
}

// Parameters per second beside those of the first row, AdamW in fp32.
void print_small(const std::vector<Row>& rows, const std::vector<int>& threads,
                 const BestTimes& times) {
  fmt::print("{:30} {:>7} {:>10} {:>11} {:>6}\n", "bf16 grad and param", "threads", "M/s",
             "AdamW M/s", "ratio");
  for (const int count : threads) {
    const double adamw = times.seconds(name_of_run(rows.front(), count, -1));
    for (const Row& row : rows) {
      const double kernel = times.seconds(name_of_run(row, count, -1));
      if (!row.is_small || !std::isfinite(kernel + adamw)) continue;
      fmt::print("{:30} {:>7} {:>10.0f} {:>11.0f} {:>6.2f}\n", row.label, count,
                 kNumel / kernel * 1e-6, kNumel / adamw * 1e-6, adamw / kernel);
    }
  }
}

int run(int argc, char** argv) {
  std::vector<char*> arguments(argv, argv + argc);
  std::string interleave = "--benchmark_enable_random_interleaving=true";
  arguments.insert(arguments.begin() + 1, interleave.data());
  int count = static_cast<int>(arguments.size());
  benchmark::Initialize(&count, arguments.data());
  if (benchmark::ReportUnrecognizedArguments(count, arguments.data())) return 2;

  std::vector<int> threads = {1};
  if (max_threads() > 1) threads.push_back(max_threads());
  Data data;
  const std::vector<Row> rows = data.rows();
  for (const int thread_count : threads) {
    for (const Row& row : rows) {
      add_benchmark(name_of_run(row, thread_count, -1), thread_count, row.kernel);
      for (int i = 0; i < static_cast<int>(row.bounds.size()); ++i) {
        add_benchmark(name_of_run(row, thread_count, i), thread_count,
                      row.bounds[static_cast<size_t>(i)]);
      }
    }
  }
  BestTimes times;
  benchmark::RunSpecifiedBenchmarks(&times);
  print_table(rows, threads, times);
  print_small(rows, threads, times);
  return 0;
}

}  // namespace
}  // namespace zerorun::bench

int main(int argc, char** argv) { return zerorun::bench::run(argc, argv); }
