#include "comm/error_group.h"

#include "tests/common.h"
#include "tests/gate.h"

namespace zerorun::error_group_test {
namespace {

using testing::Gate;

std::string no_error() { return ""; }

class ErrorGroupTest : public ::testing::Test {
 protected:
  const std::shared_ptr<ErrorGroup> group_ = std::make_shared<ErrorGroup>();
  Gate asked_;
  Gate answer_;
};

TEST_F(ErrorGroupTest, AnAbortDoesNotWaitForAMemberThatIsAsked) {
  std::promise<std::string> told;
  // Its store may be on a host that cannot be reached.
  const auto slow = group_->join({.set_error = [](auto) {},
                                  .error =
                                      [&] {
                                        asked_.open();
                                        answer_.pass();
                                        return std::string();
                                      }});
  const auto other = group_->join(
      {.set_error = [&](auto error) { told.set_value(std::string(error)); }, .error = no_error});
  auto looking = std::async(std::launch::async, [&] { group_->propagate(); });
  asked_.pass();
  auto failing = std::async(std::launch::async, [&] { group_->fail("aborted"); });
  EXPECT_EQ(told.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
  EXPECT_EQ(failing.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  answer_.open();
}

TEST_F(ErrorGroupTest, AMemberMayNeedThatAnotherIsToldBeforeItEnds) {
  Gate first;
  Gate second;
  // As the abort of a communicator waits for its kernels, which wait for those of another.
  const auto one = group_->join({.set_error =
                                     [&](auto) {
                                       first.open();
                                       second.pass();
                                     },
                                 .error = no_error});
  const auto other = group_->join({.set_error =
                                       [&](auto) {
                                         second.open();
                                         first.pass();
                                       },
                                   .error = no_error});
  auto failing = std::async(std::launch::async, [&] { group_->fail("aborted"); });
  EXPECT_EQ(failing.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  first.open();
  second.open();
}

TEST_F(ErrorGroupTest, AMemberThatHasLeftIsNotBeingAsked) {
  std::atomic<bool> asking = false;
  auto leaving = group_->join({.set_error = [](auto) {},
                               .error =
                                   [&] {
                                     asking = true;
                                     asked_.open();
                                     answer_.pass();
                                     asking = false;
                                     return std::string();
                                   }});
  const auto other = group_->join({.set_error = [](auto) {}, .error = no_error});
  auto looking = std::async(std::launch::async, [&] { group_->propagate(); });
  asked_.pass();
  auto opening = std::async(std::launch::async, [&] { answer_.open(); });
  leaving.reset();
  EXPECT_FALSE(asking);
}

}  // namespace
}  // namespace zerorun::error_group_test
