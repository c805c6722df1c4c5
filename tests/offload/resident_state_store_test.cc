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
