#include "comm/job_state.h"

#include "tests/common.h"
#include "tests/gate.h"

namespace zerorun::testing::job_state_test {
namespace {

std::string no_error() { return ""; }
void ignore(std::string_view /*error*/) {}

struct JobStateTest : ::testing::Test {
  using Member = std::shared_ptr<void>;
  // A member that is told errors by `told`, and whose own error is `error`'s answer.
  Member join(std::function<void(std::string_view)> told,
              std::function<std::string()> error = no_error) {
    return job_->join({.set_error = std::move(told), .error = std::move(error)});
  }
  // One that is being asked until `answer_` opens.
  Member join_slow() {
    return join(ignore, [this] {
      asking_ = true;
      asked_.open();
      answer_.pass();
      asking_ = false;
      return std::string();
    });
  }
  std::future<void> propagate() {
    return std::async(std::launch::async, [this] { job_->propagate(); });
  }
  std::future<void> fail() {
    return std::async(std::launch::async, [this] { job_->fail("aborted"); });
  }

  const std::shared_ptr<JobState> job_ = std::make_shared<JobState>();
  std::atomic<bool> asking_ = false;
  Gate asked_;
  Gate answer_;
};

TEST_F(JobStateTest, AnAbortDoesNotWaitForAMemberThatIsAsked) {
  std::promise<std::string> told;
  const auto slow = join_slow();  // its store may be on a host that cannot be reached
  const auto other = join([&](auto error) { told.set_value(std::string(error)); });
  auto looking = propagate();
  asked_.pass();
  auto failing = fail();
  EXPECT_EQ(told.get_future().wait_for(10s), std::future_status::ready);
  EXPECT_EQ(failing.wait_for(10s), std::future_status::ready);
  answer_.open();
}

TEST_F(JobStateTest, AMemberMayNeedThatAnotherIsToldBeforeItEnds) {
  Gate first;
  Gate second;
  // As the abort of a communicator waits for its kernels, which wait for those of another.
  const auto one = join([&](auto) {
    first.open();
    second.pass();
  });
  const auto other = join([&](auto) {
    second.open();
    first.pass();
  });
  auto failing = fail();
  EXPECT_EQ(failing.wait_for(10s), std::future_status::ready);
  first.open();
  second.open();
}

TEST_F(JobStateTest, AMemberThatHasLeftIsNotBeingAsked) {
  auto leaving = join_slow();
  const auto other = join(ignore);
  auto looking = propagate();
  asked_.pass();
  auto opening = std::async(std::launch::async, [&] { answer_.open(); });
  leaving.reset();
  EXPECT_FALSE(asking_);
}

TEST_F(JobStateTest, OneThreadLooksForAllUntilTheyLeave) {
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::array<int, 3> looks{};
  const auto look = [&](size_t number) {
    const std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
    ++looks[number];
    return std::chrono::hours(1);
  };
  const auto looked = [&] {
    const std::lock_guard lock(mutex);
    return looks;
  };
  const auto all_reach = [&](int least, int count) {  // the first ones
    job_->look_within(0ms);
    const std::array<int, 3> now = looked();
    return *std::min_element(now.begin(), now.begin() + count) >= least;
  };
  const auto first = job_->watch([&] { return look(0); });
  const auto second = job_->watch([&] { return look(1); });
  auto third = job_->watch([&] { return look(2); });
  while (!all_reach(3, 3)) std::this_thread::yield();
  third.reset();
  const std::array<int, 3> before = looked();
  while (!all_reach(before[0] + 3, 2)) std::this_thread::yield();
  EXPECT_EQ(looks[2], before[2]);
  EXPECT_EQ(threads.size(), 1U);
}

TEST_F(JobStateTest, OthersComeAndGoWhileOneLooks) {
  const auto idle = [] { return JobState::Clock::duration(std::chrono::hours(1)); };
  auto before = job_->watch(idle);
  std::atomic<bool> looking = false;
  auto slow = job_->watch([&] {
    looking = true;
    asked_.open();
    answer_.pass();
    looking = false;
    return idle();
  });
  auto after = job_->watch(idle);
  asked_.pass();
  auto others = std::async(std::launch::async, [&] {
    before.reset();
    after.reset();
    job_->watch(idle).reset();
  });
  EXPECT_EQ(others.wait_for(10s), std::future_status::ready);
  auto leaving = std::async(std::launch::async, [&] {
    slow.reset();
    return looking.load();
  });
  EXPECT_EQ(leaving.wait_for(100ms), std::future_status::timeout);
  answer_.open();
  EXPECT_FALSE(leaving.get());
}

TEST_F(JobStateTest, AForkedChildLeavesWithoutTheLocksThatItsParentHeld) {
  auto member = join_slow();
  const auto other = join(ignore);
  auto looking = propagate();
  asked_.pass();
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
    member.reset();
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  answer_.open();
}

TEST_F(JobStateTest, TheFirstErrorIsThatOfAllAlsoOfThoseWhoJoinLater) {
  EXPECT_NO_THROW(job_->check());
  job_->abort(3, "it cannot go on");
  job_->fail("another error");
  EXPECT_EQ(job_->error(), "rank 3 aborted the job: it cannot go on");
  EXPECT_THROW(job_->check(), CommError);
  std::string told;
  const auto late = join([&](auto error) { told = error; });
  EXPECT_EQ(told, job_->error());
}

}  // namespace
}  // namespace zerorun::testing::job_state_test
