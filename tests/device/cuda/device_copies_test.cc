// A checkpoint's bytes between files and a GPU.
#include "checkpoint/loading/device_copies.h"

#include "comm/nccl/communicator.h"
#include "device/cuda/cuda_device.h"
#include "tests/checkpoint/temporary_directory.h"
#include "tests/common.h"
#include "tests/device/cuda/counted_engine.h"
#include "tests/device/cuda/fake_cuda_test.h"
#include "tests/gate.h"
#include "zerorun/checkpoint.h"
#include "zerorun/engine.h"

namespace zerorun::device_copies {
namespace {

using testing::Gate;

constexpr int64_t kBlockNumel = DeviceCopies::kBlockNbytes / sizeof(float);

std::vector<float> counted(int64_t numel) {
  std::vector<float> values(static_cast<size_t>(numel));
  std::iota(values.begin(), values.end(), 0.0F);
  return values;
}

class DeviceCopiesTest : public testing::FakeCudaTest {
 protected:
  DeviceCopiesTest() : FakeCudaTest(std::chrono::microseconds(300)) {}
};

TEST_F(DeviceCopiesTest, EveryByteComesToItsPlaceAndBackInOrder) {
  CudaDevice device(0, 0);
  for (const int64_t numel : {int64_t{1}, kBlockNumel, 3 * kBlockNumel + 5}) {
    const std::vector<float> values = counted(numel);
    const auto nbytes = static_cast<size_t>(numel) * sizeof(float);
    const Buffer memory = device.allocate(nbytes, MemoryCategory::other);
    const TensorView view = view_of(memory, DType::fp32, numel);
    DeviceCopies copies(device);
    copies.upload(view, false, [&](uint64_t offset, std::span<std::byte> bytes) {
      std::memcpy(bytes.data(), reinterpret_cast<const std::byte*>(values.data()) + offset,
                  bytes.size());
    });
    std::vector<float> back(values.size());
    uint64_t done = 0;
    for (int round = 0; round < 2; ++round) {  // of two tensors
      copies.download(view, false, [&, round](uint64_t offset, std::span<const std::byte> bytes) {
        EXPECT_EQ(round * nbytes + offset, done);
        std::memcpy(reinterpret_cast<std::byte*>(back.data()) + offset, bytes.data(), bytes.size());
        done += bytes.size();
      });
    }
    copies.finish();
    EXPECT_EQ(done, 2 * nbytes);
    EXPECT_EQ(back, values);
  }
}

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
  std::vector<float> host = counted(10);
  const TensorView view = view_of(std::span(host));
  DeviceCopies copies(device);
  copies.upload(view, true,
                [&](uint64_t, std::span<std::byte> bytes) { EXPECT_EQ(bytes.data(), view.data); });
  copies.download(view, true, [&](uint64_t, std::span<const std::byte> bytes) {
    EXPECT_EQ(bytes.data(), view.data);
  });
  EXPECT_EQ(device.memory_use(MemoryCategory::pinned).peak_bytes, 0);
}

std::unique_ptr<Engine> make_engine(Device& device, Communicator& comm, OffloadDevice home,
                                    float value) {
  std::vector<ParameterSpec> specs = {{"large", {kBlockNumel + 3}, "m", 0, true, ""},
                                      {"small", {5}, "m", 0, true, ""},
                                      {"frozen", {2 * kBlockNumel + 1}, "m", 0, false, ""}};
  return testing::make_counted_engine(device, comm, std::move(specs), value, home);
}

// The reference is an engine of the CPU with the same values.
TEST_F(DeviceCopiesTest, ACheckpointOfAGpuIsThatOfTheCpuAndBack) {
  const testing::TemporaryDirectory directory;
  const auto comm = make_communicator({});
  const auto cpu = make_cpu_device();
  const auto device = std::make_shared<CudaDevice>(0, 0);
  CudaDevice& gpu = *device;
  const auto gpu_comm = make_nccl_communicator({.device = device});
  const auto reference = make_engine(*cpu, *comm, OffloadDevice::none, 1.0F);
  const uint64_t expected = reference->states().parameter_hash();
  for (const OffloadDevice home : {OffloadDevice::none, OffloadDevice::cpu}) {
    const auto saving = make_engine(gpu, *gpu_comm, home, 1.0F);
    save_checkpoint(saving->states(), *gpu_comm,
                    {.directory = directory.path().string(), .tag = "a"});
    const auto on_cpu = make_engine(*cpu, *comm, OffloadDevice::none, 2.0F);
    load_checkpoint(on_cpu->states(), *comm, directory.path().string());
    EXPECT_EQ(on_cpu->states().parameter_hash(), expected);
    const auto on_gpu = make_engine(gpu, *gpu_comm, home, 2.0F);
    load_checkpoint(on_gpu->states(), *gpu_comm, directory.path().string());
    EXPECT_EQ(on_gpu->states().parameter_hash(), expected);
  }
}

}  // namespace
}  // namespace zerorun::device_copies
