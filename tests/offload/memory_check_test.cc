#include "offload/pinned_arena.h"
#include "tests/error_of.h"

namespace zerorun::testing {
namespace {

TEST(MemoryCheck, LockingMoreThanTheLimitIsSaidWithWhatToDo) {
  const HostLimits limits{.lockable = int64_t{8} << 20};
  EXPECT_EQ(locking_advice(limits, size_t{4} << 20, 2), "");
  EXPECT_EQ(locking_advice({}, size_t{4} << 40, 2), "");
  const std::string advice = locking_advice(limits, size_t{6} << 20, 2);
  EXPECT_THAT(advice, HasSubstr("12.0 MiB of buffers on this host"));
  EXPECT_THAT(advice, HasSubstr("`ulimit -l` allows 8.0 MiB"));
  EXPECT_THAT(advice, HasSubstr("ulimit memlock=-1"));
}

TEST(MemoryCheck, TooLittleIsAnErrorThatSaysWhatIsMissingWhere) {
  HostLimits limits{.available = int64_t{16} << 30};
  check_host_memory(limits, size_t{8} << 30, 2, "offloading");
  check_host_memory({}, size_t{1} << 50, 8, "a host whose limits are unknown");
  const auto message = [&](size_t nbytes) {
    return error_of<ConfigError>([&] { check_host_memory(limits, nbytes, 2, "offloading"); });
  };
  EXPECT_THAT(message(size_t{9} << 30),
              HasSubstr("offloading needs 9.0 GiB of host memory for each of 2 ranks, 18.0 GiB "
                        "in all; the machine has 16.0 GiB left"));
  limits.group_available = int64_t{1} << 30;
  EXPECT_THAT(message(size_t{1} << 30), HasSubstr("the control group has 1.0 GiB left"));
}

// Copies may not cross from one block to the next.
TEST(PinnedArenaTest, EachViewLiesInOneBlockAndAllFit) {
  const auto device = make_cpu_device();
  constexpr int64_t kNumel = 48;  // 192 bytes: two in a block
  constexpr int kViews = 7;
  PinnedArena arena(*device, kViews * PinnedArena::nbytes_of(kNumel, DType::fp32), 512);
  std::vector<TensorView> views;
  for (int i = 0; i < kViews; ++i) {
    views.push_back(arena.take(kNumel, DType::fp32));
    std::fill_n(views.back().as<float>(), kNumel, static_cast<float>(i));
  }
  for (int i = 0; i < kViews; ++i) {
    EXPECT_THAT(std::vector<float>(views[i].as<float>(), views[i].as<float>() + kNumel),
                ::testing::Each(static_cast<float>(i)));
  }
  EXPECT_THROW(arena.take(1, DType::fp32), InternalError);
  PinnedArena one(*device, PinnedArena::nbytes_of(1024, DType::fp32), 512);
  EXPECT_EQ(one.take(1024, DType::fp32).numel, 1024);  // larger than a block
}

}  // namespace
}  // namespace zerorun::testing
