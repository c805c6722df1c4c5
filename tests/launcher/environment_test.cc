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

TEST(RankVariables, OfGpuJobsShowAllGpusAndSetWhatTheUserHasNot) {
  JobSettings job = two_ranks();
  EXPECT_EQ(variable("CUDA_VISIBLE_DEVICES", job), "");
  EXPECT_EQ(variable("NCCL_LAUNCH_ORDER_IMPLICIT", job), "unset");
  job.gpus = {"4", "GPU-ab"};
  EXPECT_EQ(variable("CUDA_VISIBLE_DEVICES", job, {}, 1), "4,GPU-ab");
  job.gpus = {"MIG-1", "MIG-2"};
  EXPECT_EQ(variable("CUDA_VISIBLE_DEVICES", job, {}, 0), "MIG-1");
  EXPECT_EQ(variable("CUDA_VISIBLE_DEVICES", job, {}, 1), "MIG-2");
  EXPECT_EQ(variable("NCCL_LAUNCH_ORDER_IMPLICIT", job), "1");
  EXPECT_EQ(variable("CUDA_DEVICE_MAX_CONNECTIONS", job), "32");
  EXPECT_EQ(variable("CUDA_DEVICE_MAX_CONNECTIONS", job, {{"CUDA_DEVICE_MAX_CONNECTIONS", "1"}}),
            "unset");
  // The launcher knows no files in /dev of GPUs under WSL or of another maker.
  job = two_ranks();
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
    EXPECT_THAT(error_of<ConfigError>([&] { threads_of(threads); }),
                HasSubstr("OMP_NUM_THREADS='" + threads + "': expected a number of threads"));
  }
}

TEST(RankVariables, Rank0AloneInheritsTheSocketOfTheMeetingPoint) {
  JobSettings job = two_ranks();
  job.store_fd = 7;
  EXPECT_EQ(variable("ZERORUN_STORE_FD", job), "7");
  EXPECT_EQ(variable("ZERORUN_STORE_FD", job, {}, 1), "unset");
}

TEST(RankEnvironment, ReplacesKeepsAndDropsWhatAnEnclosingJobSet) {
  const Environment inherited = {{"RANK", "7"},
                                 {"HOME", "/root"},
                                 {"ZERORUN_STORE_FD", "7"},
                                 {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
  EXPECT_EQ(rank_environment(inherited, {{"RANK", "0"}}),
            (Environment{{"RANK", "0"}, {"HOME", "/root"}}));
}

TEST(RankVariables, PythonFindsTheWorkingDirectoryFirst) {
  JobSettings job = two_ranks();
  job.python = true;
  EXPECT_EQ(variable("PYTHONPATH", job), "/work");
  EXPECT_EQ(variable("PYTHONUNBUFFERED", job), "1");
  EXPECT_EQ(variable("PYTHONPATH", job, {{"PYTHONPATH", "/lib"}}), "/work:/lib");
}

TEST(Exports, PassOnWhatSteersLibrariesAndWhatIsNamed) {
  const Environment passed = {{"NCCL_DEBUG", "INFO"}, {"PYTHONPATH", "/lib"}, {"UCX_TLS", "tcp"},
                              {"PATH", "/bin"},       {"HF_HOME", "/hf"},     {"MINE", "a b"}};
  Environment environment = {{"HF_TOKEN", "secret"},       {"ZERORUN_JOB_SECRET", "s"},
                             {"ZERORUN_STORE_FD", "7"},    {"CUDA_VISIBLE_DEVICES", "1"},
                             {"TORCHELASTIC_RUN_ID", "x"}, {"OTHER", "c"}};
  environment.insert(passed.begin(), passed.end());
  EXPECT_EQ(exported_variables(environment, {"MINE"}), passed);
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

TEST(JobSecret, Is32FreshBytes) {
  EXPECT_THAT(make_secret(), ::testing::MatchesRegex("[0-9a-f]{64}"));
  EXPECT_NE(make_secret(), make_secret());
}

TEST(EnvironmentFile, TakesAssignmentsAsAShellDoes) {
  const Environment expected = {{"A", "1"}, {"B", "x y"}, {"C", ""}, {"D_2", "p=q"}, {"E", "'"}};
  EXPECT_EQ(parse_environment_file("# comment\nA=1\n\nexport B=\"x y\"\r\nC=\n  D_2=p=q\nE='", "f"),
            expected);
  for (const char* text : {"A=1\nB", "A=1\n2B=3", "A=1\n=3", "A=1\nB C=3"}) {
    EXPECT_THAT(error_of<ConfigError>([&] { parse_environment_file(text, "file"); }),
                HasSubstr("file:2: expected NAME=VALUE"))
        << text;
  }
}

}  // namespace
}  // namespace zerorun
