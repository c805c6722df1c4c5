// When a GPU's memory is used up: what is kept for later goes first, then the allocation fails.
#include <algorithm>
#include <utility>
#include <vector>

#include "comm/nccl_communicator.h"
#include "device/cuda/cuda_device.h"
#include "tests/cuda/fake_cuda_test.h"
#include "zerorun/error.h"

namespace zerorun {
namespace {

using ::testing::HasSubstr;

class OutOfMemoryTest : public testing::FakeCudaTest {};

TEST_F(OutOfMemoryTest, SaysWhatIsHeldAndWhichSettingsMakeRoom) {
  fake_.set_memory(size_t{8} << 20);
  CudaDevice device(0, 0);
  const Buffer states = device.allocate(size_t{5} << 20, MemoryCategory::optimizer);
  const Buffer gradients = device.allocate(size_t{1} << 20, MemoryCategory::gradients);
  try {
    device.allocate(size_t{4} << 20, MemoryCategory::activations);
    FAIL() << "expected an error";
  } catch (const DeviceError& error) {
    EXPECT_THAT(error.what(), HasSubstr("4.0 MiB for activations"));
    EXPECT_THAT(error.what(), HasSubstr("2.0 MiB free"));
    EXPECT_THAT(error.what(), HasSubstr("optimizer 5.0 MiB"));
    EXPECT_THAT(error.what(), HasSubstr("offload_optimizer"));
    // 1 MiB of gradients would not make up for 2 MiB.
    EXPECT_THAT(error.what(), ::testing::Not(HasSubstr("stage 2")));
  }
}

// Blocks that were freed are kept for others of their size, and other allocators keep theirs.
TEST_F(OutOfMemoryTest, WhatIsKeptIsGivenBackBeforeAnAllocationFails) {
  constexpr size_t kBlock = size_t{1} << 20;
  fake_.set_memory(4 * kBlock);
  CudaDevice device(0, 0);
  void* cached = nullptr;  // by a framework
  ASSERT_TRUE(fake::add_device_memory(&cached, 2 * kBlock));
  int asked = 0;
  device.use_reclaimer([&] {
    ++asked;
    if (cached != nullptr) fake::remove_device_memory(std::exchange(cached, nullptr));
  });
  device.allocate(2 * kBlock, MemoryCategory::other);
  EXPECT_TRUE(device.allocate(2 * kBlock - 1, MemoryCategory::other));
  EXPECT_EQ(asked, 0);  // what the pool kept was enough
  EXPECT_TRUE(device.allocate(4 * kBlock, MemoryCategory::other));
  EXPECT_EQ(asked, 1);
  EXPECT_THROW(device.allocate(4 * kBlock + 1, MemoryCategory::other), DeviceError);
  EXPECT_EQ(asked, 2);
  CudaStream& stream = cuda_stream(device.inline_stream());
  const Buffer most = device.allocate(3 * kBlock, MemoryCategory::other);
  ASSERT_TRUE(fake::add_device_memory(&cached, kBlock));
  EXPECT_TRUE(device.scratch(stream, kBlock));
  EXPECT_EQ(asked, 3);
}

// Freed blocks may still be in use by what was submitted before.
TEST_F(OutOfMemoryTest, WhatIsKeptIsGivenBackAfterTheWorkOnIt) {
  constexpr size_t kBlock = size_t{1} << 20;
  fake_.set_memory(kBlock);
  fake_.set_delay(std::chrono::microseconds(5000));
  CudaDevice device(0, 0);
  for (int round = 0; round < 10; ++round) {
    {
      const Buffer used = device.allocate(kBlock, MemoryCategory::other);
      const TensorView view = view_of(used, DType::fp32, kBlock / sizeof(float));
      device.fill(device.inline_stream(), view, 1.0F);  // AddressSanitizer sees it come too late,
    }
    const Buffer next = device.allocate(kBlock - 512, MemoryCategory::other);  // and so does this
    const TensorView view = view_of(next, DType::fp32, (kBlock - 512) / sizeof(float));
    const auto side = device.make_stream("side");
    device.fill(*side, view, 2.0F);
    std::vector<float> seen(static_cast<size_t>(view.numel));
    device.download(*side, view, seen.data());
    side->synchronize();
    device.inline_stream().synchronize();
    EXPECT_EQ(std::count(seen.begin(), seen.end(), 2.0F), view.numel);
  }
}

TEST_F(OutOfMemoryTest, ALimitHoldsForAllCategoriesTogether) {
  CudaDevice device(0, 1000);
  const Buffer first = device.allocate(600, MemoryCategory::parameters);
  EXPECT_THROW(device.allocate(401, MemoryCategory::gradients), DeviceError);
  EXPECT_TRUE(device.allocate(400, MemoryCategory::gradients));
}

TEST_F(OutOfMemoryTest, MemoryToCommunicateIsWithinTheLimit) {
  const auto device = std::make_shared<CudaDevice>(0, 1000);
  const auto communicator = make_nccl_communicator({.device = device});
  EXPECT_TRUE(communicator->allocate(900, Sharing::per_rank));
  try {
    communicator->allocate(1001, Sharing::per_rank);
    FAIL() << "expected an error";
  } catch (const DeviceError& error) {
    EXPECT_THAT(error.what(), HasSubstr("communication"));
    EXPECT_THAT(error.what(), HasSubstr("of the limit of 1000 B"));
  }
}

}  // namespace
}  // namespace zerorun
