#include "offload/pinned_arena.h"
#include "offload/state_store.h"
#include "tests/common.h"
#include "zerorun/error.h"

namespace zerorun {
namespace {

enum class Home { device, host };

class ResidentStateStoreTest : public ::testing::TestWithParam<Home> {
 protected:
  std::unique_ptr<StateStore> make(const std::vector<StateLayout>& chunks) {
    if (GetParam() == Home::device) return make_device_state_store(*device_, chunks);
    size_t nbytes = 0;
    for (const StateLayout& chunk : chunks) nbytes += host_state_nbytes(chunk);
    arena_ = std::make_unique<PinnedArena>(*device_, nbytes);
    auto store = make_host_state_store(*arena_, chunks);
    EXPECT_EQ(arena_->taken(), arena_->nbytes());
    return store;
  }
  int64_t live(MemoryCategory category) const { return device_->memory_use(category).live_bytes; }

  const std::shared_ptr<Device> device_ = make_cpu_device();
  Stream& stream_ = device_->inline_stream();
  std::unique_ptr<PinnedArena> arena_;
};

TEST_P(ResidentStateStoreTest, StatesOfANewChunkAreZero) {
  const std::vector<StateSpec> specs = {{"master"}, {"exp_avg"}};
  const std::array<int64_t, 2> numels = {1000, 1 << 20};
  const auto store = make({{numels[0], specs}, {numels[1], specs}});
  for (int chunk = 0; chunk < 2; ++chunk) {
    const std::vector<TensorView> views = store->acquire(chunk, stream_, Content::needed);
    ASSERT_EQ(views.size(), 2U);
    for (const TensorView& view : views) {
      EXPECT_EQ(view.numel, numels[static_cast<size_t>(chunk)]);
      EXPECT_EQ(view.dtype, DType::fp32);
      const auto values = view.span<float>();
      EXPECT_TRUE(std::all_of(values.begin(), values.end(), [](float x) { return x == 0.0F; }));
    }
    EXPECT_NE(views[0].data, views[1].data);
  }
}

TEST_P(ResidentStateStoreTest, KeepsWhatWasWrittenAndShowsItAtRest) {
  const auto store = make({{3, {{"exp_avg"}}}, {10, {{"exp_avg"}}}});
  store->acquire(0, stream_, Content::needed)[0].as<float>()[2] = 5.0F;
  store->release(0, stream_, SIZE_MAX);
  store->acquire(1, stream_, Content::needed)[0].as<float>()[0] = 7.0F;
  store->release(1, stream_, SIZE_MAX);
  EXPECT_EQ(store->acquire(0, stream_, Content::needed)[0].as<float>()[2], 5.0F);
  EXPECT_EQ(store->stored(1)[0].as<float>()[0], 7.0F);
}

TEST_P(ResidentStateStoreTest, StatesHaveTheDtypeAndLengthTheyAskFor) {
  const auto store = make({{1000,
                            {{"master", DType::bf16},
                             {"exp_avg", DType::uint8},
                             {"exp_avg_scale", DType::fp32, 256}}}});
  const std::vector<TensorView> views = store->acquire(0, stream_, Content::needed);
  EXPECT_EQ(views[0].dtype, DType::bf16);
  EXPECT_EQ(views[1].dtype, DType::uint8);
  EXPECT_EQ(views[1].numel, 1000);
  EXPECT_EQ(views[2].numel, 4);
  for (const std::byte byte : std::span(views[1].data, views[1].nbytes())) {
    EXPECT_EQ(byte, std::byte{0});
  }
}

TEST_P(ResidentStateStoreTest, ChunksMayBeEmpty) {
  const auto store = make({{0, {{"exp_avg"}}}, {5, {}}});
  EXPECT_TRUE(store->acquire(0, stream_, Content::needed)[0].empty());
  EXPECT_TRUE(store->acquire(1, stream_, Content::needed).empty());
}

TEST_P(ResidentStateStoreTest, BytesAreCountedWhereTheyAre) {
  const std::vector<StateLayout> chunks = {{1024, {{"master"}, {"exp_avg"}, {"exp_avg_sq"}}},
                                           {16, {{"exp_avg"}, {"exp_avg_sq"}}}};
  const auto store = make(chunks);
  const bool on_device = GetParam() == Home::device;
  const int64_t nbytes = 4 * (3 * 1024 + 2 * 16);
  EXPECT_EQ(live(MemoryCategory::optimizer), on_device ? nbytes : 0);
  EXPECT_EQ(live(MemoryCategory::pinned), on_device ? 0 : nbytes);
  EXPECT_EQ(live(MemoryCategory::other), 0);
}

TEST_P(ResidentStateStoreTest, WhatIsOffloadedLeavesTheDeviceAndComesBackWithItsNextUse) {
  const auto store = make({{1024, {{"master"}, {"exp_avg"}}}, {0, {{"exp_avg"}}}});
  const std::array before = {live(MemoryCategory::optimizer), live(MemoryCategory::pinned)};
  store->acquire(0, stream_, Content::needed)[1].as<float>()[1023] = 5.0F;
  store->release(0, stream_, SIZE_MAX);
  for (int round = 0; round < 2; ++round) {
    store->offload();
    store->offload();
    EXPECT_EQ(live(MemoryCategory::optimizer), 0);
    EXPECT_EQ(live(MemoryCategory::pinned), before[0] + before[1]);
    if (round == 0) store->reload();
    EXPECT_EQ(store->stored(0)[1].as<float>()[1023], 5.0F);
    EXPECT_EQ(live(MemoryCategory::optimizer), before[0]);
    EXPECT_EQ(live(MemoryCategory::pinned), before[1]);
    EXPECT_EQ(store->acquire(0, stream_, Content::needed)[1].as<float>()[1023], 5.0F);
  }
  EXPECT_TRUE(store->stored(1)[0].empty());
}

TEST_P(ResidentStateStoreTest, ChunksThatDoNotFitAreATypedError) {
  EXPECT_THROW(make({{int64_t{1} << 55, {{"master"}}}}), Error);
  EXPECT_EQ(live(MemoryCategory::optimizer), 0);
  EXPECT_EQ(live(MemoryCategory::pinned), 0);
}

INSTANTIATE_TEST_SUITE_P(Homes, ResidentStateStoreTest, ::testing::Values(Home::device, Home::host),
                         [](const auto& home) {
                           return home.param == Home::device ? "Device" : "Host";
                         });

}  // namespace
}  // namespace zerorun
