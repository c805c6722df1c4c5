#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "offload/state_store.h"
#include "zerorun/error.h"

namespace zerorun {
namespace {

class DeviceStateStoreTest : public ::testing::Test {
 protected:
  const std::shared_ptr<Device> device_ = make_cpu_device();
  Stream& stream_ = device_->inline_stream();
  const std::unique_ptr<StateStore> store_ = make_device_state_store(*device_);
};

TEST_F(DeviceStateStoreTest, StatesOfANewShardAreZero) {
  const int shard = store_->add({1000, {{"master"}, {"exp_avg"}}});
  const std::vector<TensorView> views = store_->acquire(shard, stream_);
  ASSERT_EQ(views.size(), 2U);
  for (const TensorView& view : views) {
    EXPECT_EQ(view.numel, 1000);
    EXPECT_EQ(view.dtype, DType::fp32);
    const auto values = view.span<float>();
    EXPECT_TRUE(std::all_of(values.begin(), values.end(), [](float x) { return x == 0.0F; }));
  }
  EXPECT_NE(views[0].data, views[1].data);
}

TEST_F(DeviceStateStoreTest, KeepsWhatWasWrittenWhileShardsAreAdded) {
  const int first = store_->add({3, {{"exp_avg"}}});
  const TensorView view = store_->acquire(first, stream_)[0];
  view.as<float>()[2] = 5.0F;
  store_->release(first, stream_);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(store_->add({10, {{"exp_avg"}}}), first + 1 + i);
  const TensorView again = store_->acquire(first, stream_)[0];
  EXPECT_EQ(again.data, view.data);
  EXPECT_EQ(again.as<float>()[2], 5.0F);
}

TEST_F(DeviceStateStoreTest, HoldsExactlyItsBytesAsOptimizerMemory) {
  store_->add({1000, {{"master"}, {"exp_avg"}, {"exp_avg_sq"}}});
  store_->add({7, {{"exp_avg"}, {"exp_avg_sq"}}});
  EXPECT_EQ(device_->memory_use(MemoryCategory::optimizer).live_bytes, 4 * (3 * 1000 + 2 * 7));
  EXPECT_EQ(device_->memory_use(MemoryCategory::other).live_bytes, 0);
}

TEST_F(DeviceStateStoreTest, StatesHaveTheDtypeAndLengthTheyAskFor) {
  const int shard = store_->add(
      {1000,
       {{"master", DType::bf16}, {"exp_avg", DType::uint8}, {"exp_avg_scale", DType::fp32, 256}}});
  const std::vector<TensorView> views = store_->acquire(shard, stream_);
  EXPECT_EQ(views[0].dtype, DType::bf16);
  EXPECT_EQ(views[1].dtype, DType::uint8);
  EXPECT_EQ(views[1].numel, 1000);
  EXPECT_EQ(views[2].numel, 4);
  for (const std::byte byte : std::span(views[1].data, views[1].nbytes())) {
    EXPECT_EQ(byte, std::byte{0});
  }
  EXPECT_EQ(device_->memory_use(MemoryCategory::optimizer).live_bytes, 2000 + 1000 + 16);
}

TEST_F(DeviceStateStoreTest, ShardsMayBeEmpty) {
  const int shard = store_->add({0, {{"exp_avg"}}});
  EXPECT_TRUE(store_->acquire(shard, stream_)[0].empty());
  EXPECT_TRUE(store_->acquire(store_->add({5, {}}), stream_).empty());
}

TEST_F(DeviceStateStoreTest, ShardsThatDoNotFitAreAnErrorOfTheDevice) {
  EXPECT_THROW(store_->add({int64_t{1} << 55, {{"master"}}}), DeviceError);
  EXPECT_EQ(device_->memory_use(MemoryCategory::optimizer).live_bytes, 0);
}

}  // namespace
}  // namespace zerorun
