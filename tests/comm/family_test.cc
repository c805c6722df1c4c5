#include "comm/family.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>

#include "tests/gate.h"

namespace zerorun::family_test {
namespace {

using testing::Gate;

std::string no_error() { return ""; }

class FamilyTest : public ::testing::Test {
 protected:
  const std::shared_ptr<Family> family_ = std::make_shared<Family>();
  Gate asked_;
  Gate answer_;
};

TEST_F(FamilyTest, AnAbortDoesNotWaitForAMemberThatIsAsked) {
  std::promise<std::string> told;
  // Its store may be on a host that cannot be reached.
  const auto slow = family_->join({.tell = [](auto) {},
                                   .ask =
                                       [&] {
                                         asked_.open();
                                         answer_.pass();
                                         return std::string();
                                       }});
  const auto other = family_->join(
      {.tell = [&](auto error) { told.set_value(std::string(error)); }, .ask = no_error});
  auto looking = std::async(std::launch::async, [&] { family_->look(); });
  asked_.pass();
  auto failing = std::async(std::launch::async, [&] { family_->fail("aborted"); });
  EXPECT_EQ(told.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
  EXPECT_EQ(failing.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  answer_.open();
}

TEST_F(FamilyTest, AMemberMayNeedThatAnotherIsToldBeforeItEnds) {
  Gate first;
  Gate second;
  // As the abort of a communicator waits for its kernels, which wait for those of another.
  const auto one = family_->join({.tell =
                                      [&](auto) {
                                        first.open();
                                        second.pass();
                                      },
                                  .ask = no_error});
  const auto other = family_->join({.tell =
                                        [&](auto) {
                                          second.open();
                                          first.pass();
                                        },
                                    .ask = no_error});
  auto failing = std::async(std::launch::async, [&] { family_->fail("aborted"); });
  EXPECT_EQ(failing.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  first.open();
  second.open();
}

TEST_F(FamilyTest, AMemberThatHasLeftIsNotBeingAsked) {
  std::atomic<bool> asking = false;
  auto leaving = family_->join({.tell = [](auto) {},
                                .ask =
                                    [&] {
                                      asking = true;
                                      asked_.open();
                                      answer_.pass();
                                      asking = false;
                                      return std::string();
                                    }});
  const auto other = family_->join({.tell = [](auto) {}, .ask = no_error});
  auto looking = std::async(std::launch::async, [&] { family_->look(); });
  asked_.pass();
  auto opening = std::async(std::launch::async, [&] { answer_.open(); });
  leaving.reset();
  EXPECT_FALSE(asking);
}

}  // namespace
}  // namespace zerorun::family_test
