#include "os/page_pool.h"

#include "tests/common.h"

namespace zerorun {
namespace {

constexpr size_t kMany = size_t{3} << 20;
const auto kPage = static_cast<size_t>(::getpagesize());

// True if a program may read there; the system call looks, and does not die.
bool has_memory(const void* at) {
  int ends[2];
  if (::pipe(ends) != 0) return false;
  const bool written = ::write(ends[1], at, 1) == 1;
  ::close(ends[0]);
  ::close(ends[1]);
  return written;
}

std::span<std::byte> take(PagePool& pool, int range, size_t nbytes) {
  return {pool.take(range, nbytes), nbytes};
}

bool all_are(std::span<const std::byte> bytes, std::byte value) {
  return std::all_of(bytes.begin(), bytes.end(), [=](std::byte each) { return each == value; });
}

TEST(PagePool, ARangeHasMemoryFromTakeToGiveAndAlwaysTheSameAddress) {
  PagePool pool;
  std::byte* const at = pool.reserve(7, 100);
  EXPECT_FALSE(has_memory(at));
  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(pool.take(7, 100), at);
    std::memset(at, round, 100);
    EXPECT_TRUE(has_memory(at));
    pool.give(7);
    EXPECT_FALSE(has_memory(at));
  }
}

TEST(PagePool, ARangeGetsThePagesThatAnotherOfItsSizeGaveBack) {
  PagePool pool;
  pool.reserve(0, kMany);
  pool.reserve(1, kMany);
  const auto first = take(pool, 0, kMany);
  std::fill(first.begin(), first.end(), std::byte{5});
  pool.give(0);
  const auto second = take(pool, 1, kMany);
  EXPECT_TRUE(all_are(second, std::byte{5}));  // a new page would be zero
  const auto again = take(pool, 0, kMany);
  EXPECT_TRUE(all_are(again, std::byte{0}));
  std::fill(again.begin(), again.end(), std::byte{6});
  EXPECT_TRUE(all_are(second, std::byte{5}));
}

TEST(PagePool, ValuesOfRangesInUseDoNotChangeWhileOthersComeAndGo) {
  PagePool pool;
  constexpr int kRanges = 5;
  const auto size_of = [](int range) { return kMany + static_cast<size_t>(range % 2) * kPage; };
  std::vector<std::span<std::byte>> used(kRanges);
  for (int range = 0; range < kRanges; ++range) pool.reserve(range, size_of(range));
  for (int step = 0; step < 40; ++step) {
    const int range = step * 3 % kRanges;
    auto& bytes = used[static_cast<size_t>(range)];
    if (bytes.empty()) {
      bytes = take(pool, range, size_of(range));
      std::fill(bytes.begin(), bytes.end(), static_cast<std::byte>(range));
    } else {
      EXPECT_TRUE(all_are(bytes, static_cast<std::byte>(range))) << step;
      pool.give(range);
      bytes = {};
    }
  }
}

size_t own_resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  size_t total = 0;
  size_t resident = 0;
  statm >> total >> resident;
  return resident * kPage;
}

TEST(PagePool, KeepsNoMoreMemoryThanRangesHadAtOneTime) {
  PagePool pool;
  constexpr int kRanges = 12;
  const size_t before = own_resident_bytes();
  for (int range = 0; range < kRanges; ++range) {
    const size_t nbytes = kMany + static_cast<size_t>(range) * kPage;  // sizes all differ
    pool.reserve(range, nbytes);
    const auto bytes = take(pool, range, nbytes);
    std::fill(bytes.begin(), bytes.end(), std::byte{1});
    pool.give(range);
  }
  EXPECT_LT(own_resident_bytes() - before, 3 * kMany);
}

TEST(PagePool, TellsARangeThatIsTooSmall) {
  PagePool pool;
  pool.reserve(0, kPage);
  EXPECT_THROW(pool.take(0, kPage + 1), InternalError);
}

}  // namespace
}  // namespace zerorun
