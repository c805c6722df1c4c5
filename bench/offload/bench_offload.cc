// What offloading costs a step of one rank, bf16 and AdamW, without forward and backward. Without
// arguments both of these, with 100 million parameters:
//   bench_offload host [MILLIONS]            the step with states on the host, over that without,
//                                            and over a copy of the bytes that it moves
//   bench_offload nvme DIRECTORY [MILLIONS]  the step with states in a file, over the time that the
//                                            disk takes for the same bytes, and memory beyond the
//                                            model's
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "bench/optimizer/copy_kernels.h"
#include "offload/block_io.h"
#include "offload/direct_file.h"
#include "zerorun/communicator.h"
#include "zerorun/engine.h"

namespace zerorun::bench {
namespace {

constexpr int64_t kWidth = 2048;
constexpr double kGB = 1e9;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double peak_rss() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024;
}

struct Measured {
  double step = std::numeric_limits<double>::infinity();      // s, the best
  double backward = std::numeric_limits<double>::infinity();  // s, of giving the gradients
  double elements = 0;
  double model_bytes = 0;  // parameters and gradients
  double file_bytes = 0;
};

Measured run(const Config& config, double millions, int steps) {
  const auto comm = make_communicator({});
  const auto device = make_cpu_device();
  std::vector<ParameterSpec> specs;
  const auto layers =
      std::max<int64_t>(8, static_cast<int64_t>(millions * 1e6) / (kWidth * kWidth));
  for (int64_t i = 0; i < layers; ++i) {
    const std::string name = fmt::format("h.{}", i);
    specs.push_back({name, {kWidth, kWidth}, name, 0, true, ""});
  }
  const auto engine = Engine::create(config, *device, *comm, specs, {ParameterGroup{}});
  engine->initialize_parameters(
      [](ParameterId, int64_t, std::span<float> out) { std::fill(out.begin(), out.end(), 0.02F); });
  Measured measured;
  measured.elements = static_cast<double>(layers * kWidth * kWidth);
  measured.model_bytes = measured.elements * 4;
  for (int step = 0; step < steps; ++step) {
    double start = now();
    for (auto id = static_cast<ParameterId>(layers); id-- > 0;) {
      const ModuleId module = engine->module_id(specs[static_cast<size_t>(id)].module);
      engine->gather(module);
      device->fill(device->inline_stream(), engine->gradient(id).view, 0.01F);
      engine->grad_ready(id);
      engine->release(module);
    }
    engine->end_micro_step();
    measured.backward = std::min(measured.backward, now() - start);
    start = now();
    engine->step();
    if (step > 0) measured.step = std::min(measured.step, now() - start);
  }
  measured.file_bytes = static_cast<double>(device->memory_use(MemoryCategory::nvme).live_bytes);
  return measured;
}

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

// Seconds for moving what an update of `numel` elements moves, with its streams, computing nothing:
// the best of several.
double copy_seconds(double numel) {
  const auto device = make_cpu_device();
  constexpr int64_t kNumel = 32 << 20;
  std::vector<Buffer> buffers;
  const auto make = [&](DType dtype) {
    const TensorView view{nullptr, kNumel, dtype};
    buffers.push_back(device->allocate(view.nbytes(), MemoryCategory::other));
    const TensorView filled = view_of(buffers.back(), dtype, kNumel);
    device->fill(device->inline_stream(), filled, 1.0F);
    return filled;
  };
  UpdateTensors tensors;
  tensors.master = make(DType::fp32);
  tensors.states = {make(DType::fp32), make(DType::fp32)};
  tensors.grad = make(DType::bf16);
  tensors.param = make(DType::bf16);
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 10; ++i) {
    const double start = now();
    copy_like_adam(tensors, i % 2 == 0);
    if (i > 1) best = std::min(best, now() - start);
  }
  return best * numel / static_cast<double>(kNumel);
}

void bench_host(double millions) {
  constexpr int kSteps = 6;
  const Measured without = run(config_of(OffloadDevice::none), millions, kSteps);
  const Measured with = run(config_of(OffloadDevice::cpu), millions, kSteps);
  const double copy = copy_seconds(with.elements);
  fmt::print("{:.0f} M parameters\n", with.elements / 1e6);
  fmt::print("step: without offload {:.3f} s, on the host {:.3f} s\n", without.step, with.step);
  fmt::print(
      "a copy of the update's bytes {:.3f} s: {:.0f} % of the copy limit, copies up and down "
      "included\n",
      copy, 100 * copy / with.step);
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
  std::vector<Block> blocks;
  for (uint64_t at = 0; at < kFile; at += kBlock) {
    blocks.push_back({buffer.data() + at % kMemory, kBlock, at});
  }
  double total = 0;
  for (const Transfer direction : {Transfer::write, Transfer::read}) {
    double best = std::numeric_limits<double>::infinity();
    for (int i = 0; i < 3; ++i) {
      const double start = now();
      io->transfer(direction, blocks, [](size_t) {});
      best = std::min(best, now() - start);
    }
    fmt::print("disk: {} {:.2f} GB/s ({})\n", direction == Transfer::read ? "read" : "write",
               static_cast<double>(kFile) / best / kGB, io->name());
    total += best * nbytes / static_cast<double>(kFile);
  }
  return total;
}

void bench_nvme(const std::string& folder, double millions) {
  constexpr int kSteps = 4;
  Config config = config_of(OffloadDevice::nvme);
  config.offload.optimizer.nvme_path = folder;
  const Measured measured = run(config, millions, kSteps);
  const double beyond = peak_rss() - measured.model_bytes;
  const double disk = disk_seconds(folder, measured.file_bytes);
  fmt::print("{:.0f} M parameters, {:.2f} GB of states in {}\n", measured.elements / 1e6,
             measured.file_bytes / kGB, folder);
  fmt::print("step {:.2f} s; the disk alone, read and then write, {:.2f} s: {:.2f} x\n",
             measured.step, disk, measured.step / disk);
  fmt::print("peak memory beyond parameters and gradients: {:.2f} GB\n", beyond / kGB);
}

}  // namespace
}  // namespace zerorun::bench

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.empty()) {
    zerorun::bench::bench_host(100);
    zerorun::bench::bench_nvme(".", 100);
    return 0;
  }
  if (arguments[0] == "host") {
    zerorun::bench::bench_host(arguments.size() > 1 ? std::stod(arguments[1]) : 100);
    return 0;
  }
  if (arguments.size() > 1 && arguments[0] == "nvme") {
    zerorun::bench::bench_nvme(arguments[1], arguments.size() > 2 ? std::stod(arguments[2]) : 333);
    return 0;
  }
  fmt::print(
      "bench_offload | bench_offload host [MILLIONS] | bench_offload nvme DIRECTORY [MILLIONS]\n");
  return 2;
}
