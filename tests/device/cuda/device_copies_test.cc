// A checkpoint's bytes between files and a GPU.
#include "checkpoint/loading/device_copies.h"

#include "tests/checkpoint/temporary_directory.h"
#include "tests/gate.h"
#include "tests/zero/cuda/transports.h"
#include "zerorun/checkpoint.h"

namespace zerorun::testing::device_copies {
namespace {

constexpr int64_t kBlockNumel = DeviceCopies::kBlockNbytes / sizeof(float);

using DeviceCopiesTest = LateCudaTest<300>;

TEST_F(DeviceCopiesTest, TheHostFillsABlockWhileTheGpuCopiesTheOther) {
  CudaDevice device(0, 0);
  const Buffer memory = device.allocate(2 * DeviceCopies::kBlockNbytes, MemoryCategory::other);
  const TensorView view = view_of(memory, DType::fp32, 2 * kBlockNumel);
  DeviceCopies copies(device);
  copies.upload(view, false, [](uint64_t, std::span<std::byte>) {});  // which pins the blocks
  copies.finish();
  Gate gate;
  fake::submit(cuda_stream(device.inline_stream()).handle(), [&] { gate.pass(); });
  int filled = 0;
  copies.upload(view, false, [&](uint64_t, std::span<std::byte> bytes) {
    std::fill(bytes.begin(), bytes.end(), std::byte{7});
    ++filled;
  });
  EXPECT_EQ(filled, 2);  // and the GPU has not begun
  gate.open();
  copies.finish();
}

TEST_F(DeviceCopiesTest, WhatIsOffloadedIsUsedWhereItIs) {
  CudaDevice device(0, 0);
  std::vector<float> host(10);
  const TensorView view = view_of(std::span(host));
  DeviceCopies copies(device);
  copies.upload(view, true,
                [&](uint64_t, std::span<std::byte> bytes) { EXPECT_EQ(bytes.data(), view.data); });
  copies.download(view, true, [&](uint64_t, std::span<const std::byte> bytes) {
    EXPECT_EQ(bytes.data(), view.data);
  });
  EXPECT_EQ(device.memory_use(MemoryCategory::pinned).peak_bytes, 0);
}

// A bf16 engine at stage 2 whose values count up from `value` along each parameter.
std::unique_ptr<Engine> make_counted_engine(Device& device, Communicator& comm,
                                            std::vector<ParameterSpec> specs, float value,
                                            OffloadDevice home = OffloadDevice::none) {
  Config config = toy_config(2);
  config.zero.reduce_bucket_size = Config().zero.reduce_bucket_size;
  config.offload.optimizer.device = home;
  auto engine = Engine::create(config, device, comm, std::move(specs), {ParameterGroup{}});
  engine->initialize_parameters([value](ParameterId id, int64_t begin, std::span<float> out) {
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = value + static_cast<float>((begin + static_cast<int64_t>(i) + id) % 977);
    }
  });
  return engine;
}

const std::vector<ParameterSpec>& three_sizes() {
  static const std::vector<ParameterSpec> specs = {
      {"large", {kBlockNumel + 3}, "m"},
      {"small", {5}, "m"},
      {"frozen", {2 * kBlockNumel + 1}, "m", 0, false}};
  return specs;
}

// The reference is an engine of the CPU with the same values.
TEST_F(DeviceCopiesTest, ACheckpointOfAGpuIsThatOfTheCpuAndBack) {
  const TemporaryDirectory directory;
  const auto comm = make_communicator({});
  const auto cpu = make_cpu_device();
  const auto device = std::make_shared<CudaDevice>(0, 0);
  CudaDevice& gpu = *device;
  const auto gpu_comm = make_nccl_communicator({.device = device});
  const auto reference = make_counted_engine(*cpu, *comm, three_sizes(), 1.0F);
  const uint64_t expected = reference->states().parameter_hash();
  for (const OffloadDevice home : {OffloadDevice::none, OffloadDevice::cpu}) {
    const auto saving = make_counted_engine(gpu, *gpu_comm, three_sizes(), 1.0F, home);
    save_checkpoint(saving->states(), *gpu_comm,
                    {.directory = directory.path().string(), .tag = "a"});
    const auto on_cpu = make_counted_engine(*cpu, *comm, three_sizes(), 2.0F);
    load_checkpoint(on_cpu->states(), *comm, directory.path().string());
    EXPECT_EQ(on_cpu->states().parameter_hash(), expected);
    const auto on_gpu = make_counted_engine(gpu, *gpu_comm, three_sizes(), 2.0F, home);
    load_checkpoint(on_gpu->states(), *gpu_comm, directory.path().string());
    EXPECT_EQ(on_gpu->states().parameter_hash(), expected);
  }
}

constexpr int64_t kPieceNumel = (8 << 20) / sizeof(float);

std::vector<ParameterSpec> matrices(int count) {
  std::vector<ParameterSpec> specs = {{"large", {2 * kPieceNumel + 3}, "m"}};
  for (int i = 0; i < count; ++i) specs.push_back({"w" + std::to_string(i), {7, 5}, "m"});
  return specs;
}

// Calls of the training's thread that wait for a stream. The copies follow each other on it; what
// the ranks tell each other has waits of its own, and the thread that writes waits for events.
TEST_F(DeviceCopiesTest, AnAsynchronousSaveWaitsForTheGpuOnceHoweverManyTensorsThereAre) {
  const TemporaryDirectory directory;
  const auto device = std::make_shared<CudaDevice>(0, 0);
  const auto comm = make_nccl_communicator({.device = device});
  const auto waits_of_streams = [&] { return fake_.counts()["cudaStreamSynchronize"]; };
  std::vector<int> waits;
  for (const int count : {1, 40}) {
    const auto engine = make_counted_engine(*device, *comm, matrices(count), 1.0F);
    const uint64_t hash = engine->states().parameter_hash();
    AsyncSaver saver(engine->states(), *comm);
    const std::string tag = "of" + std::to_string(count);
    const int before = waits_of_streams();
    saver.save({.directory = directory.string(), .tag = tag});
    waits.push_back(waits_of_streams() - before);
    saver.wait();
    const auto loaded = make_counted_engine(*device, *comm, matrices(count), 2.0F);
    load_checkpoint(loaded->states(), *comm, directory.string(), tag);
    EXPECT_EQ(loaded->states().parameter_hash(), hash);
  }
  EXPECT_EQ(waits[0], waits[1]);
}

std::unique_ptr<Engine> make_engine(int stage, Communicator& comm, Device& device) {
  auto engine = Engine::create(toy_config(stage), device, comm, toy_specs(), ToyModel::groups());
  toy_initialize(*engine);
  return engine;
}

// Gives every element of the masters and states another value.
void write_states(Engine& engine, Device& device, float value) {
  for (const StateInterval& interval : engine.states().state_intervals()) {
    std::vector<TensorView> views = interval.states;
    if (!interval.master.empty()) views.push_back(interval.master);
    for (const TensorView& view : views) device.fill(device.inline_stream(), view, value += 0.25F);
  }
  engine.states().refresh_from_masters();
}

std::string bytes_of(Engine& engine, Device& device) {
  std::string all;
  for (const StateInterval& interval : engine.states().state_intervals()) {
    std::vector<TensorView> views = interval.states;
    views.insert(views.end(), {interval.param, interval.master});
    for (const TensorView& view : views) {
      std::string bytes(view.nbytes(), '\0');
      device.download(device.inline_stream(), view, bytes.data());
      device.inline_stream().synchronize();
      all += bytes;
    }
  }
  return all;
}

using CudaLoadTest = LateCudaTest<300>;

TEST_F(CudaLoadTest, LoadsEveryByteOrNone) {
  fake_.set_devices(2);
  for (const int stage : {0, 2, 3}) {
    const TemporaryDirectory directory;
    const ToyJob job{.connect = on(Where::nccl)};
    run_devices(job, [&](Device& device, Communicator& comm) {
      const int rank = comm.rank();
      const auto saving = make_engine(stage, comm, device);
      write_states(*saving, device, 1);
      save_checkpoint(saving->states(), comm, {.directory = directory.string()});
      const std::string saved = bytes_of(*saving, device);
      for (const bool is_fresh : {true, false}) {
        const auto engine = make_engine(stage, comm, device);
        if (!is_fresh) write_states(*engine, device, -7);
        const std::string before = bytes_of(*engine, device);
        if (rank == 0) flip_last_bit(directory);
        EXPECT_ERROR_OF(CheckpointError,
                        load_checkpoint(engine->states(), comm, directory.string()), "damaged");
        EXPECT_TRUE(bytes_of(*engine, device) == before) << stage << is_fresh;
        if (rank == 0) flip_last_bit(directory);
        load_checkpoint(engine->states(), comm, directory.string());
        EXPECT_TRUE(bytes_of(*engine, device) == saved) << stage << is_fresh;
      }
    });
  }
}

}  // namespace
}  // namespace zerorun::testing::device_copies
