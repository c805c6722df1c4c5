#include "device/slot_ring.h"

#include "device/cpu/cpu_stream.h"
#include "tests/common.h"
#include "zerorun/error.h"

namespace zerorun {
namespace {

TEST(SlotRing, HandsOutItsSlotsInTurnOnceTheyAreFree) {
  const auto device = make_cpu_device();
  const auto user = device->make_stream("user");
  const auto next = device->make_stream("next");
  std::vector<std::byte> memory(8);
  SlotRing ring;
  ring.add(TensorView{memory.data(), 8, DType::uint8});
  ring.add(device->allocate(16, MemoryCategory::other));

  std::atomic<bool> go = false;
  std::atomic<bool> used = false;
  EXPECT_EQ(ring.take(*user), 0U);
  EXPECT_EQ(ring.view(0, 2, DType::fp32).data, memory.data());
  cpu_stream(*user).submit([&] {
    go.wait(false);
    used = true;
  });
  ring.release(0, user->record());
  EXPECT_EQ(ring.take(*next), 1U);  // free from the start
  next->synchronize();
  EXPECT_EQ(ring.take(*next), 0U);
  EXPECT_EQ(ring.last(), 0U);
  std::atomic<bool> seen = false;
  cpu_stream(*next).submit([&] { seen = used.load(); });
  go = true;
  go.notify_all();
  next->synchronize();
  EXPECT_TRUE(seen);
  ring.synchronize(0);
  EXPECT_THROW(ring.view(1, 5, DType::fp32), InternalError);
  ring.replace(1, device->allocate(32, MemoryCategory::other));
  EXPECT_EQ(ring.view(1, 5, DType::fp32).numel, 5);
}

}  // namespace
}  // namespace zerorun
