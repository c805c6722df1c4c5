#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>

#include "comm/rendezvous/rendezvous.h"
#include "os/socket.h"
#include "zerorun/communicator.h"
#include "zerorun/error.h"

namespace zerorun {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Variables = std::map<std::string, std::string>;

// The environment holds just these of the variables that matter.
RankInfo rank_with(const Variables& variables) {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
                           "MASTER_PORT", "ZERORUN_JOB_SECRET"}) {
    unsetenv(name);
  }
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  return rank_from_environment();
}

std::string error_with(const Variables& variables) {
  try {
    rank_with(variables);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(RankInfoTest, WithoutAnEnvironmentTheJobHasOneRank) {
  const RankInfo info = rank_with({});
  EXPECT_EQ(info.rank, 0);
  EXPECT_EQ(info.world_size, 1);
  EXPECT_EQ(connect(info)->transport(), "self");
}

TEST(RankInfoTest, ReadsWhatALauncherSets) {
  const RankInfo info = rank_with({{"RANK", "5"},
                                   {"WORLD_SIZE", "8"},
                                   {"LOCAL_RANK", "1"},
                                   {"LOCAL_WORLD_SIZE", "4"},
                                   {"MASTER_ADDR", "node0"},
                                   {"MASTER_PORT", "1234"},
                                   {"ZERORUN_JOB_SECRET", "s"}});
  EXPECT_EQ(info.rank, 5);
  EXPECT_EQ(info.world_size, 8);
  EXPECT_EQ(info.local_rank, 1);
  EXPECT_EQ(info.local_world_size, 4);
  EXPECT_EQ(info.master_addr, "node0");
  EXPECT_EQ(info.master_port, 1234);
  EXPECT_EQ(info.secret, "s");
}

TEST(RankInfoTest, ARankWithoutLocalOnesRunsOnOneHost) {
  const RankInfo info = rank_with({{"RANK", "1"}, {"WORLD_SIZE", "2"}});
  EXPECT_EQ(info.local_rank, 1);
  EXPECT_EQ(info.local_world_size, 2);
  EXPECT_EQ(info.master_port, 29500);
}

TEST(RankInfoTest, ContradictionsAreErrorsThatNameTheVariables) {
  EXPECT_THAT(error_with({{"RANK", "1"}}), HasSubstr("WORLD_SIZE"));
  EXPECT_THAT(error_with({{"WORLD_SIZE", "2"}}), HasSubstr("RANK"));
  EXPECT_THAT(error_with({{"RANK", "2"}, {"WORLD_SIZE", "2"}}),
              AllOf(HasSubstr("RANK=2"), HasSubstr("WORLD_SIZE=2")));
  EXPECT_THAT(error_with({{"RANK", "-1"}, {"WORLD_SIZE", "2"}}), HasSubstr("RANK='-1'"));
  EXPECT_THAT(error_with({{"RANK", "zero"}, {"WORLD_SIZE", "2"}}), HasSubstr("RANK='zero'"));
  EXPECT_THAT(error_with({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "70000"}}),
              HasSubstr("MASTER_PORT='70000'"));
  const Variables base = {{"RANK", "1"}, {"WORLD_SIZE", "4"}};
  const auto with = [&](Variables more) {
    more.insert(base.begin(), base.end());
    return error_with(more);
  };
  EXPECT_THAT(with({{"LOCAL_WORLD_SIZE", "5"}}), HasSubstr("LOCAL_WORLD_SIZE=5"));
  EXPECT_THAT(with({{"LOCAL_WORLD_SIZE", "2"}}), HasSubstr("LOCAL_RANK"));
  EXPECT_THAT(with({{"LOCAL_RANK", "0"}}), HasSubstr("LOCAL_WORLD_SIZE"));
  EXPECT_THAT(with({{"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}}), HasSubstr("LOCAL_RANK=2"));
  EXPECT_THAT(with({{"LOCAL_RANK", "3"}, {"LOCAL_WORLD_SIZE", "4"}}), HasSubstr("LOCAL_RANK=3"));
}

TEST(RankInfoTest, AThreadCountThatOpenMpDoesNotTakeIsAnError) {
  EXPECT_EQ(error_with({{"OMP_NUM_THREADS", "4,2"}}), "");
  EXPECT_THAT(error_with({{"OMP_NUM_THREADS", "100000"}}), HasSubstr("OMP_NUM_THREADS='100000'"));
  EXPECT_THAT(error_with({{"OMP_NUM_THREADS", "abc"}}), HasSubstr("OMP_NUM_THREADS='abc'"));
  unsetenv("OMP_NUM_THREADS");
}

// Rank 0 serves on the socket that the launcher left to it: the port is bound, yet not busy.
TEST(RankInfoTest, Rank0TakesTheSocketOfTheLauncher) {
  Listener held = reserve_port("127.0.0.1", 0);
  RankInfo info;
  info.world_size = info.local_world_size = 2;
  info.master_port = held.port;
  setenv("ZERORUN_STORE_FD", std::to_string(held.socket.get()).c_str(), 1);
  held.socket.release();
  std::shared_ptr<Store> server = rendezvous(info, std::chrono::seconds(30));
  info.rank = 1;
  const std::shared_ptr<Store> client = rendezvous(info, std::chrono::seconds(30));
  client->set("key", "value");
  EXPECT_EQ(server->get("key", std::chrono::seconds(30)), "value");
  // The number means nothing any more: a second job of this process makes a socket of its own.
  info.rank = 0;
  server.reset();
  server = rendezvous(info, std::chrono::seconds(30));
  EXPECT_EQ(bound_port(*server), info.master_port);
  unsetenv("ZERORUN_STORE_FD");
}

TEST(RankInfoTest, SeveralHostsAreNotSupportedYet) {
  RankInfo info;
  info.world_size = 4;
  info.local_world_size = 2;
  try {
    connect(info);
    FAIL() << "expected an error";
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(), HasSubstr("several hosts"));
  }
}

}  // namespace
}  // namespace zerorun
