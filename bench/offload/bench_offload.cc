// The cost of offloading for a step of one rank, bf16 and AdamW, without forward and backward.
// Without arguments both of these, with 100 million parameters:
//   bench_offload host [MILLIONS]            the step with states on the host, over that without,
//                                            and over a copy of the bytes that it moves
//   bench_offload nvme DIRECTORY [MILLIONS]  the step with states in a file, over the time that the
//                                            disk takes for the same bytes, and memory beyond the
//                                            model's
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "bench/harness.h"
#include "bench/optimizer/copy_kernels.h"
#include "offload/block_io.h"
#include "offload/direct_file.h"
#include "zerorun/communicator.h"
#include "zerorun/engine.h"

namespace zerorun::bench {
namespace {

constexpr int64_t kWidth = 2048;
constexpr double kGB = 1e9;

double peak_rss() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024;
}

struct Measured {
  double step = std::numeric_limits<double>::infinity();      // s, the best
  double backward = std::numeric_limits<double>::infinity();  // s, of giving the gradients
};

// One rank with `millions` of parameters, in matrices.
class Trainer {
 public:
  Trainer(const Config& config, double millions) {
    const auto layers =
        std::max<int64_t>(8, static_cast<int64_t>(millions * 1e6) / (kWidth * kWidth));
    for (int64_t i = 0; i < layers; ++i) {
      const std::string name = fmt::format("h.{}", i);
      specs_.push_back({name, {kWidth, kWidth}, name, 0, true, ""});
    }
    engine_ = Engine::create(config, *device_, *comm_, specs_, {ParameterGroup{}});
    engine_->initialize_parameters([](ParameterId, int64_t, std::span<float> out) {
      std::fill(out.begin(), out.end(), 0.02F);
    });
    train();
    measured_ = {};  // the first step finds memory that was never touched
  }

  void train() {
    double start = now();
    for (auto id = static_cast<ParameterId>(specs_.size()); id-- > 0;) {
      const ModuleId module = engine_->module_id(specs_[static_cast<size_t>(id)].module);
      engine_->gather(module);
      device_->fill(device_->inline_stream(), engine_->gradient(id).view, 0.01F);
      engine_->grad_ready(id);
      engine_->release(module);
    }
    engine_->end_micro_step();
    measured_.backward = std::min(measured_.backward, now() - start);
    start = now();
    engine_->step();
    measured_.step = std::min(measured_.step, now() - start);
  }

  const Measured& measured() const { return measured_; }
  double elements() const { return static_cast<double>(specs_.size()) * kWidth * kWidth; }
  double model_bytes() const { return elements() * 4; }  // parameters and gradients
  double file_bytes() const {
    return static_cast<double>(device_->memory_use(MemoryCategory::nvme).live_bytes);
  }

 private:
  const std::shared_ptr<Communicator> comm_ = make_communicator({});
  const std::shared_ptr<Device> device_ = make_cpu_device();
  std::vector<ParameterSpec> specs_;
  std::unique_ptr<Engine> engine_;
  Measured measured_;
};

Config config_of(OffloadDevice device) {
  Config config;
  config.batch.accumulation_steps = 1;
  config.precision.param_dtype = DType::bf16;
  config.zero.stage = 2;
  config.zero.reduce_bucket_size = 16 << 20;
  config.zero.overlap_comm = true;
  config.gradient_clipping = 0.0;
  config.offload.optimizer.device = device;
  return config;
}

// Moves what an AdamW update moves, with its streams, computing nothing.
class Copy {
 public:
  Copy() {
    const auto make = [&](DType dtype) { return memory_.make(dtype, kNumel, 1.0F); };
    tensors_.master = make(DType::fp32);
    tensors_.states = {make(DType::fp32), make(DType::fp32)};
    tensors_.grad = make(DType::bf16);
    tensors_.param = make(DType::bf16);
  }
  void run() {
    for (const bool past_caches : {false, true}) {
      const double start = now();
      copy_like_adam(tensors_, past_caches);
      best_ = std::min(best_, now() - start);
    }
  }
  double bytes_per_second() const { return kBytesOfUpdate * static_cast<double>(kNumel) / best_; }

  // Gradient and parameter of 16 bits; master and two states, read and written.
  static constexpr double kBytesOfUpdate = 2 + 2 + 3 * 8;

 private:
  static constexpr int64_t kNumel = 32 << 20;
  const std::shared_ptr<Device> device_ = make_cpu_device();
  Tensors memory_{*device_};
  UpdateTensors tensors_;
  double best_ = std::numeric_limits<double>::infinity();  // s
};

// A CPU rank's step reads gradients and writes parameters where they lie: it moves the update's
// bytes and no others.
void bench_host(double millions) {
  constexpr int kRounds = 8;
  Trainer without(config_of(OffloadDevice::none), millions);
  Trainer with(config_of(OffloadDevice::cpu), millions);
  Copy copy;
  for (int round = 0; round < kRounds; ++round) {  // in turn: the machine has other work
    copy.run();
    without.train();
    with.train();
  }
  const double step = with.measured().step;
  const double moved = Copy::kBytesOfUpdate * with.elements();
  fmt::print("{:.0f} M parameters, {:.0f} bytes each a step\n", with.elements() / 1e6,
             Copy::kBytesOfUpdate);
  fmt::print(
      "step with states on the host {:.3f} s, {:.1f} GB/s: {:.0f} % of the copy limit, "
      "{:.1f} GB/s\n",
      step, moved / step / kGB, 100 * moved / step / copy.bytes_per_second(),
      copy.bytes_per_second() / kGB);
  fmt::print("step without offload {:.3f} s: {:.2f} x\n", without.measured().step,
             step / without.measured().step);
  fmt::print("gradients: without offload {:.3f} s, to the host {:.3f} s\n",
             without.measured().backward, with.measured().backward);
}

// Seconds that the disk takes to read and to write `nbytes`, at its best.
double disk_seconds(const std::string& folder, double nbytes) {
  constexpr uint64_t kFile = uint64_t{1} << 30;
  constexpr size_t kMemory = size_t{64} << 20;
  constexpr size_t kBlock = size_t{1} << 20;
  const DirectFile file(folder, "benchmark", kFile);
  const auto device = make_cpu_device();
  const Buffer buffer = device->allocate_pinned(kMemory);
  std::memset(buffer.data(), 1, kMemory);
  const std::vector<std::span<std::byte>> memory = {{buffer.data(), kMemory}};
  const auto io = make_block_io(file.open(), {.block_size = kBlock, .queue_depth = 8}, memory);
  double total = 0;
  for (const Direction direction : {Direction::write, Direction::read}) {
    double best = 0;
    for (int i = 0; i < 3; ++i) {
      best = std::max(best, transfer_rate(*io, direction, memory[0], kBlock, kFile));
    }
    fmt::print("disk: {} {:.2f} GB/s ({})\n", direction == Direction::read ? "read" : "write",
               best / kGB, io->name());
    total += nbytes / best;
  }
  return total;
}

void bench_nvme(const std::string& folder, double millions) {
  constexpr int kSteps = 4;
  Config config = config_of(OffloadDevice::nvme);
  config.offload.optimizer.nvme_path = folder;
  Trainer trainer(config, millions);
  for (int step = 0; step < kSteps; ++step) trainer.train();
  const double beyond = peak_rss() - trainer.model_bytes();
  const double step = trainer.measured().step;
  const double disk = disk_seconds(folder, trainer.file_bytes());
  fmt::print("{:.0f} M parameters, {:.2f} GB of states in {}\n", trainer.elements() / 1e6,
             trainer.file_bytes() / kGB, folder);
  fmt::print("step {:.2f} s; the disk alone, read and then write, {:.2f} s: {:.2f} x\n", step, disk,
             step / disk);
  fmt::print("peak memory beyond parameters and gradients: {:.2f} GB\n", beyond / kGB);
}

}  // namespace
}  // namespace zerorun::bench

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const auto number = [&](size_t at, double otherwise) {
    return words.size() > at ? std::stod(words[at]) : otherwise;
  };
  if (words.empty() || words[0] == "host") zerorun::bench::bench_host(number(1, 100));
  if (words.empty()) zerorun::bench::bench_nvme(".", 100);
  if (words.empty() || words[0] == "host") return 0;
  if (words.size() > 1 && words[0] == "nvme") {
    zerorun::bench::bench_nvme(words[1], number(2, 333));
    return 0;
  }
  fmt::print(
      "bench_offload | bench_offload host [MILLIONS] | bench_offload nvme DIRECTORY [MILLIONS]\n");
  return 2;
}
