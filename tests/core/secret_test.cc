#include "core/secret.h"

#include "tests/common.h"

namespace zerorun {
namespace {

TEST(Secret, IsTheSameOnlyIfAllOfItIs) {
  EXPECT_TRUE(same_secret("", ""));
  EXPECT_TRUE(same_secret("secret", "secret"));
  for (const char* other : {"", "s", "secre", "secrets", "Secret", "secreT", "se\xe3ret"}) {
    EXPECT_FALSE(same_secret("secret", other)) << other;
    EXPECT_FALSE(same_secret(other, "secret")) << other;
  }
}

}  // namespace
}  // namespace zerorun
