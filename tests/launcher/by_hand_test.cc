// Launchers that somebody starts on each host, and what they say when that goes wrong. Where it
// needs hosts that differ, tests/hosts/test_by_hand.py has it.
#include <ctime>

#include "tests/launcher/launcher_peer.h"
#include "tests/launcher/launcher_process.h"

namespace zerorun::testing::by_hand_test {
namespace {

using Clock = std::chrono::steady_clock;
using Words = std::vector<std::string>;

constexpr auto kAlone = 10s;  // how long nobody is left without a word, or an end

Deadline soon() { return Clock::now() + 30s; }

struct ByHand : ::testing::Test {
  LauncherProcess start(int node_rank, int hosts, const Words& program = {"true"},
                        std::map<std::string, std::string> variables = {}) const {
    variables.insert({"ZERORUN_JOB_SECRET", "s"});
    return LauncherProcess(by_hand_command(node_rank, hosts, 1, port_, program),
                           std::move(variables));
  }
  // The test joins as a launcher that runs `true` on a host named `other`.
  Peer join(ControlMessage introduction) const {
    Peer peer(connect_to("127.0.0.1", port_, soon()));
    peer.send(introduction);
    return peer;
  }
  static ControlMessage introduction(const std::string& build = build_id().data(),
                                     int64_t ahead = 0) {
    ControlMessage join = join_message("s", "other", build);
    join.add("program", "true").add("command", -1).add("node_rank", 1);
    return join.add("time", static_cast<int64_t>(std::time(nullptr)) + ahead);
  }

  const uint16_t port_ = reserve_port("127.0.0.1", 0).port;
};

void read_until(LauncherProcess& job, const std::string& text) {
  while (job.read_error_line().find(text) == std::string::npos) {
  }
}

void expect_ends(const std::vector<LauncherProcess*>& jobs) {
  for (LauncherProcess* const job : jobs) EXPECT_EQ(job->wait(), 0);
}

TEST_F(ByHand, WhoIsAloneSoonSaysWhy) {
  const auto expect_end = [&](int node_rank, int code, const TextMatcher& errors) {
    const auto begin = Clock::now();
    EXPECT_THAT(start(node_rank, 2).end(), ended(code, errors));
    EXPECT_LT(Clock::now() - begin, kAlone);
  };
  expect_end(
      0, 2,
      HasAll("no other host has joined for 8 s",
             "127.0.0.1 (--master_addr, --rdzv_endpoint), which is "
             "an address that every host has for itself",
             "Type here: zerorun --accelerator cpu", "--rdzv_conf timeout=SECONDS waits longer"));
  expect_end(1, 1,
             HasAll("127.0.0.1 is this host itself, and no launcher serves the port",
                    "start its launcher with --node_rank 0",
                    "attempts, the last one: 127.0.0.1: Connection refused"));
}

TEST_F(ByHand, ASecondFirstLauncherOnAHostIsToldItsNumber) {
  LauncherProcess first = start(0, 2);
  read_until(first, "which every machine has for itself");
  connect_to("127.0.0.1", port_, soon());
  LauncherProcess second = start(0, 2);
  EXPECT_THAT(second.end(), ended(2, HasSubstr("this one needs another --node_rank than 0")));
  LauncherProcess again = start(1, 2);
  expect_ends({&again, &first});
}

TEST_F(ByHand, ALauncherWithTheNumberOfAnotherIsSentAwayAndTheOthersWait) {
  LauncherProcess first = start(0, 3);
  LauncherProcess second = start(1, 3);
  read_until(first, "missing: (node 2)");
  LauncherProcess third = start(1, 3);
  EXPECT_THAT(third.end(), ended(2, HasAll("two launchers were started with --node_rank 1",
                                           "again with --node_rank 2")));
  LauncherProcess again = start(2, 3);
  expect_ends({&again, &second, &first});
}

TEST_F(ByHand, ALauncherThatIsStartedAgainJoins) {
  for (const int signal : {SIGINT, SIGKILL}) {
    LauncherProcess first = start(0, 3);
    LauncherProcess second = start(1, 3);
    read_until(first, "missing: (node 2)");
    kill(second.pid(), signal);
    EXPECT_EQ(second.wait(), 128 + signal);
    read_until(first, "was lost: the connection to its launcher ended; it is waited for");
    LauncherProcess again = start(1, 3);
    LauncherProcess third = start(2, 3);
    expect_ends({&again, &third, &first});
  }
}

// The end of its old connection and its new one come together.
TEST_F(ByHand, ALauncherThatConnectsAnewAfterAStallOfTheFirstJoinsAgain) {
  LauncherProcess first = start(0, 3);
  std::optional<Peer> other = join(introduction());
  other->await("job");
  const std::vector<pid_t> members = first.members();
  const auto coordinator = std::find_if(members.begin(), members.end(), [&first](pid_t pid) {
    return parent_of(pid) == first.pid();
  });
  ASSERT_NE(coordinator, members.end());
  kill(*coordinator, SIGSTOP);
  ASSERT_TRUE(wait_for_state(*coordinator, 'T'));
  other.reset();
  Peer again = join(introduction());
  kill(*coordinator, SIGCONT);
  again.await("job");
  kill(first.pid(), SIGINT);
  EXPECT_EQ(first.wait(), 128 + SIGINT);
}

TEST_F(ByHand, AnotherSecretIsSaidAtOnce) {
  LauncherProcess first = start(0, 2);
  connect_to("127.0.0.1", port_, soon());
  LauncherProcess second = start(1, 2, {"true"}, {{"ZERORUN_JOB_SECRET", "other"}});
  EXPECT_THAT(second.end(),
              ended(2, HasSubstr("ZERORUN_JOB_SECRET is another here than at 127.0.0.1")));
  LauncherProcess again = start(1, 2);
  expect_ends({&again, &first});
}

TEST_F(ByHand, AnotherBuildIsAnErrorOnBothHosts) {
  LauncherProcess first = start(0, 2);
  Peer other = join(introduction("another"));
  EXPECT_THAT(other.await("denied").text("why"), HasSubstr("different builds of zerorun"));
  EXPECT_THAT(first.end(), ended(2, HasAll("other has version " ZERORUN_VERSION, "build another;",
                                           "Install the same one on all hosts")));
}

TEST_F(ByHand, AClockThatDiffersIsAWarning) {
  for (const auto& [ahead, text] : {std::pair{3600, " s ahead of"}, {-3600, " s behind"}}) {
    LauncherProcess first = start(0, 2);
    Peer other = join(introduction(build_id().data(), ahead));
    other.await("job");
    kill(first.pid(), SIGINT);
    EXPECT_EQ(first.wait(), 128 + SIGINT);
    // A second may pass between the two readings.
    EXPECT_THAT(first.errors(),
                HasAll(ContainsRegex("the clock of other is 3(600|599|601) s"), text));
  }
}

TEST_F(ByHand, DifferentPythonsAreAWarning) {
  const Scratch scratch;
  Words pythons;
  for (const char* name : {"python3.11", "python3.12"}) {
    pythons.push_back(scratch.write(name, "#!/bin/sh\nexit 0\n", /*executable=*/true));
  }
  const std::string program = scratch.write("x.py", "");
  LauncherProcess first = start(0, 2, {program}, {{"ZERORUN_PYTHON", pythons[0]}});
  LauncherProcess second = start(1, 2, {program}, {{"ZERORUN_PYTHON", pythons[1]}});
  expect_ends({&first, &second});
  EXPECT_THAT(first.errors(),
              HasAll("the hosts have different Pythons: python3.11 on", "python3.12 on"));
}

// Of whatever the test lets listen where the second launcher looks for the first.
struct OtherEndpoint : ByHand {
  static Listener listening(Listener listener) {
    listen_on(listener);
    return listener;
  }

  const Listener listener_ = listening(reserve_port("127.0.0.1", port_));
  LauncherProcess second_ = start(1, 2);
};

TEST_F(OtherEndpoint, ThatIsAnotherProgramIsNamed) {
  EXPECT_THAT(second_.end(), ended(1, HasSubstr("does not answer as zerorun's launcher does")));
}

TEST_F(OtherEndpoint, ThatClosesConnectionsAtOnceIsNotAskedWithoutPause) {
  accept_ready(listener_);
  const auto begin = Clock::now();
  constexpr int kTimes = 5;
  for (int i = 0; i < kTimes; ++i) accepted(listener_);
  EXPECT_GE(Clock::now() - begin, kTimes * 100ms);
}

// A coordinator that ends before the job has begun may be started again.
TEST_F(OtherEndpoint, ThatIsStartedAgainGetsItsLauncherBack) {
  accept_ready(listener_);
  Peer coordinator(accepted(listener_));
  EXPECT_EQ(coordinator.await("join").text("node_rank"), "1");
  coordinator.send(ControlMessage("finish").add("code", 0).add("report", ""));
  EXPECT_THAT(second_.end(), ended(0, HasSubstr("waiting for it to be started again")));
}

}  // namespace
}  // namespace zerorun::testing::by_hand_test
