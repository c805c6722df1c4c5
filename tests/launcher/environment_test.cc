#include "launcher/environment.h"

#include "launcher/job.h"
#include "tests/common.h"
#include "tests/error_of.h"
#include "tests/scratch.h"
#include "zerorun/error.h"

namespace zerorun {
namespace {

JobSettings two_ranks() {
  JobSettings job;
  job.cluster.hosts = {{.host = "here", .slots = {0, 1}}};
  job.meeting = {
      .master_addr = "127.0.0.1", .master_port = 12345, .secret = "s3cret", .run_id = "none"};
  job.working_directory = "/work";
  return job;
}

// A variable of a rank with 4 threads; "unset" where the rank has what it inherits.
std::string variable(const char* name, const JobSettings& job, const Environment& inherited = {},
                     int rank = 0) {
  const Environment variables = rank_variables(job, rank, 4, inherited);
  const auto found = variables.find(name);
  return found == variables.end() ? "unset" : found->second;
}

TEST(RankVariables, TellEachRankItsPlace) {
  const Environment expected = {
      {"RANK", "1"},
      {"LOCAL_RANK", "1"},
      {"WORLD_SIZE", "2"},
      {"LOCAL_WORLD_SIZE", "2"},
      {"GROUP_RANK", "0"},
      {"GROUP_WORLD_SIZE", "1"},
      {"NODE_RANK", "0"},
      {"ROLE_RANK", "1"},
      {"ROLE_WORLD_SIZE", "2"},
      {"ROLE_NAME", "default"},
      {"TORCHELASTIC_RESTART_COUNT", "0"},
      {"TORCHELASTIC_MAX_RESTARTS", "0"},
      {"TORCHELASTIC_RUN_ID", "none"},
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},
      {"LOCAL_SIZE", "2"},
      {"CROSS_RANK", "0"},
      {"CROSS_SIZE", "1"},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", "12345"},
      {"ZERORUN_JOB_SECRET", "s3cret"},
      {"CUDA_VISIBLE_DEVICES", ""},
      {"OMP_NUM_THREADS", "4"},
  };
  EXPECT_EQ(rank_variables(two_ranks(), 1, 4, {}), expected);
}

TEST(RankVariables, OfGpuJobsShowAllGpusAndSetWhatTheUserHasNot) {
  JobSettings job = two_ranks();
  EXPECT_EQ(variable("NCCL_LAUNCH_ORDER_IMPLICIT", job), "unset");
  job.gpus = {"4", "GPU-ab"};
  for (const int rank : {0, 1}) {
    EXPECT_EQ(variable("CUDA_VISIBLE_DEVICES", job, {}, rank), "4,GPU-ab");
  }
  job.gpus = {"MIG-1", "MIG-2"};
  EXPECT_EQ(variable("CUDA_VISIBLE_DEVICES", job, {}, 0), "MIG-1");
  EXPECT_EQ(variable("CUDA_VISIBLE_DEVICES", job, {}, 1), "MIG-2");
  EXPECT_EQ(variable("NCCL_LAUNCH_ORDER_IMPLICIT", job), "1");
  EXPECT_EQ(variable("CUDA_DEVICE_MAX_CONNECTIONS", job), "32");
  EXPECT_EQ(variable("CUDA_DEVICE_MAX_CONNECTIONS", job, {{"CUDA_DEVICE_MAX_CONNECTIONS", "1"}}),
            "unset");
}

// Of WSL or another maker, say, which have no files in /dev that the launcher knows.
TEST(RankVariables, HideNoGpusThatTheLauncherMayHaveMissed) {
  JobSettings job = two_ranks();
  job.names_gpus = false;
  EXPECT_EQ(variable("CUDA_VISIBLE_DEVICES", job), "unset");
}

TEST(RankVariables, KeepTheUsersThreadCountIfOpenMpTakesIt) {
  const auto threads_of = [](const std::string& given) {
    return variable("OMP_NUM_THREADS", two_ranks(), {{"OMP_NUM_THREADS", given}});
  };
  for (const char* threads : {"3", "1", "256", "4,2"}) EXPECT_EQ(threads_of(threads), "unset");
  EXPECT_EQ(threads_of(""), "4");
  for (const std::string threads : {"abc", "0", "-1", "4,", "4 ", "100000", "2,4097", "1e3"}) {
    EXPECT_THAT(
        [&] { threads_of(threads); },
        ThrowsMessage<ConfigError>(StartsWith("environment variable OMP_NUM_THREADS='" + threads +
                                              "': expected a number of threads from 1 to ")));
  }
}

TEST(RankVariables, Rank0AloneInheritsTheSocketOfTheMeetingPoint) {
  JobSettings job = two_ranks();
  job.store_fd = 7;
  EXPECT_EQ(variable("ZERORUN_STORE_FD", job), "7");
  EXPECT_EQ(variable("ZERORUN_STORE_FD", job, {}, 1), "unset");
  EXPECT_TRUE(rank_environment({{"ZERORUN_STORE_FD", "7"}}, {}).empty());
}

TEST(RankVariables, PythonFindsTheWorkingDirectoryFirst) {
  JobSettings job = two_ranks();
  job.python = true;
  EXPECT_EQ(variable("PYTHONPATH", job), "/work");
  EXPECT_EQ(variable("PYTHONUNBUFFERED", job), "1");
  EXPECT_EQ(variable("PYTHONPATH", job, {{"PYTHONPATH", "/lib"}}), "/work:/lib");
}

TEST(RankEnvironment, ReplacesKeepsAndDropsWhatAnEnclosingTorchrunSet) {
  const Environment inherited = {
      {"RANK", "7"}, {"HOME", "/root"}, {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
  EXPECT_EQ(rank_environment(inherited, {{"RANK", "0"}}),
            (Environment{{"RANK", "0"}, {"HOME", "/root"}}));
}

TEST(EnvironmentBlock, IsWhatExecTakes) {
  EXPECT_THAT(environment_block({{"A", "1"}, {"B", "x=y"}, {"C", ""}}),
              ElementsAre("A=1", "B=x=y", "C="));
}

TEST(JobSecret, Is32FreshBytes) {
  const std::string one = make_secret();
  EXPECT_EQ(one.size(), 64);
  EXPECT_EQ(one.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_NE(one, make_secret());
}

TEST(Exports, PassOnWhatSteersLibrariesAndWhatIsNamed) {
  const Environment environment = {{"NCCL_DEBUG", "INFO"},
                                   {"PYTHONPATH", "/lib"},
                                   {"UCX_TLS", "tcp"},
                                   {"PATH", "/bin"},
                                   {"HF_HOME", "/hf"},
                                   {"HF_TOKEN", "secret"},
                                   {"ZERORUN_JOB_SECRET", "s"},
                                   {"ZERORUN_STORE_FD", "7"},
                                   {"CUDA_VISIBLE_DEVICES", "1"},
                                   {"TORCHELASTIC_RUN_ID", "x"},
                                   {"MINE", "a b"},
                                   {"OTHER", "c"}};
  const Environment expected = {{"NCCL_DEBUG", "INFO"}, {"PYTHONPATH", "/lib"}, {"UCX_TLS", "tcp"},
                                {"PATH", "/bin"},       {"HF_HOME", "/hf"},     {"MINE", "a b"}};
  EXPECT_EQ(exported_variables(environment, {"MINE"}), expected);
  EXPECT_EQ(exported_variables(environment, {"HF_TOKEN"}).at("HF_TOKEN"), "secret");
  EXPECT_THROW(exported_variables(environment, {"NOT_SET"}), ConfigError);
}

TEST(Exports, ReadTheFileOfTheUser) {
  const Scratch home;
  home.write(".deepspeed_env", "A=1\n");
  home.write("mine", "A=2\n");
  const std::string path = home.path();
  EXPECT_EQ(exported_variables({{"HOME", path}}, {}), (Environment{{"A", "1"}}));
  EXPECT_EQ(exported_variables({{"HOME", path}, {"DS_ENV_FILE", "mine"}}, {}),
            (Environment{{"A", "2"}}));
}

TEST(EnvironmentFile, TakesAssignmentsAsAShellDoes) {
  const Environment expected = {{"A", "1"}, {"B", "x y"}, {"C", ""}, {"D_2", "p=q"}, {"E", "'"}};
  EXPECT_EQ(parse_environment_file("# comment\nA=1\n\nexport B=\"x y\"\r\nC=\n  D_2=p=q\nE='", "f"),
            expected);
  for (const char* text : {"A=1\nB", "A=1\n2B=3", "A=1\n=3", "A=1\nB C=3"}) {
    EXPECT_THAT(testing::error_of<ConfigError>([&] { parse_environment_file(text, "file"); }),
                HasSubstr("file:2: expected NAME=VALUE"))
        << text;
  }
}

}  // namespace
}  // namespace zerorun
