#include "os/uninterrupted.h"

#include "tests/common.h"

namespace zerorun {
namespace {

TEST(Uninterrupted, CallsAgainOnlyAfterASignal) {
  int calls = 0;
  const auto fails_twice_with = [&calls](int error) {
    calls = 0;
    return [&calls, error] {
      errno = error;
      return ++calls < 3 ? -1 : 7;
    };
  };
  EXPECT_EQ(uninterrupted(fails_twice_with(EINTR)), 7);
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(uninterrupted(fails_twice_with(EIO)), -1);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(errno, EIO);
}

}  // namespace
}  // namespace zerorun
