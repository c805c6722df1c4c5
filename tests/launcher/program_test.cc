#include "launcher/program.h"

#include "launcher/environment.h"
#include "launcher/job.h"
#include "tests/common.h"

namespace zerorun::testing {
namespace {

// An installation with one bundled program, a PATH directory and a virtual environment.
struct FindProgram : ::testing::Test {
  FindProgram() {
    scratch_.write("install/bin/zerorun", "", true);
    scratch_.write("install/libexec/zerorun/train", "", true);
    scratch_.write("install/libexec/zerorun/notes", "");
    scratch_.write("path/tool", "", true);
    scratch_.write("path/train", "", true);
    scratch_.write("path/data", "no program");
    scratch_.write("path/python3", "", true);
    script_ = scratch_.write("my/script.py", "parser.add_argument('--local_rank')");
    search_.launcher_directory = scratch_.path() / "install/bin";
    search_.path = "/nowhere:" + (scratch_.path() / "path").string();
  }

  // The words of a rank's command, without the folder of the installation.
  std::string command_of(const ProgramRequest& request, int rank = 0) {
    std::string text =
        fmt::format("{}", fmt::join(rank_command(find_program(request, search_), rank), " "));
    const std::string folder = scratch_.path().string() + "/";
    for (size_t at = 0; (at = text.find(folder)) != text.npos;) text.erase(at, folder.size());
    return text;
  }
  std::string error_of(const ProgramRequest& request) {
    return testing::error_of<ConfigError>([&] { find_program(request, search_); });
  }

  Scratch scratch_;
  ProgramSearch search_;
  std::filesystem::path script_;
};

// Only the programs that come with zerorun use its CUDA.
TEST_F(FindProgram, BundledProgramsAreToldAndComeBeforePath) {
  EXPECT_TRUE(is_bundled({.name = "train"}, search_));
  EXPECT_FALSE(is_bundled({.name = "train", .no_python = true}, search_));
  EXPECT_FALSE(is_bundled({.name = "train", .module = true}, search_));
  EXPECT_FALSE(is_bundled({.name = "tool"}, search_));
  EXPECT_FALSE(is_bundled({.name = script_.string()}, search_));
  EXPECT_EQ(command_of({.name = "train", .arguments = {"--num_gpus"}}),
            "install/libexec/zerorun/train --num_gpus");
}

TEST_F(FindProgram, ScriptsGetPythonAndLocalRankIfTheyMentionIt) {
  const std::string script = script_.string();
  EXPECT_TRUE(find_program({.name = script}, search_).python);
  EXPECT_EQ(command_of({.name = script, .arguments = {"a"}}, 3),
            "path/python3 -u my/script.py --local_rank=3 a");
  EXPECT_EQ(command_of({.name = script, .local_rank = LocalRank::never}),
            "path/python3 -u my/script.py");
  const std::string plain = scratch_.write("my/plain.py", "print(1)");
  EXPECT_EQ(command_of({.name = plain}), "path/python3 -u my/plain.py");
  EXPECT_EQ(command_of({.name = plain, .local_rank = LocalRank::always}, 1),
            "path/python3 -u my/plain.py --local_rank=1");
}

TEST(LocalRankOption, IsWhatTheSourceMentions) {
  EXPECT_EQ(local_rank_option(R"(parser.add_argument("--local_rank", type=int))"), "--local_rank");
  EXPECT_EQ(local_rank_option(R"(@click.option("--local-rank"))"), "--local-rank");
  EXPECT_EQ(local_rank_option("if args.local_rank == -1:"), "--local_rank");
  EXPECT_EQ(local_rank_option("torch.cuda.set_device(args.local_rank)"), "--local_rank");
  EXPECT_EQ(local_rank_option(""), "");
  EXPECT_EQ(local_rank_option(R"(local_rank = int(os.environ["LOCAL_RANK"]))"), "");
  EXPECT_EQ(local_rank_option("args.local_rank = int(x)\nprint(args.local_rank)"), "");
  EXPECT_EQ(local_rank_option("device(dist.local_rank())"), "");
  EXPECT_EQ(local_rank_option("zerorun --no_local_rank x.py"), "");
}

TEST(ProgramSource, IsThatOfAScriptOrOfAModule) {
  Scratch scratch;
  scratch.write("train.py", "script");
  scratch.write("my/train.py", "module");
  scratch.write("my/tool/__main__.py", "package");
  EXPECT_EQ(program_source("train.py", false, scratch.path()), "script");
  EXPECT_EQ(program_source("my.train", true, scratch.path()), "module");
  EXPECT_EQ(program_source("my.tool", true, scratch.path()), "package");
  EXPECT_EQ(program_source("not.there", true, scratch.path()), "");
}

TEST_F(FindProgram, ThePythonIsTheWheelsOrTheActivatedOneOrTheInstallationsOrThatInPath) {
  const ProgramRequest module{.name = "m", .module = true, .local_rank = LocalRank::always};
  scratch_.write("install/bin/python", "", true);
  EXPECT_EQ(command_of(module), "path/python3 -u -m m --local_rank=0");
  scratch_.write("install/pyvenv.cfg", "");
  EXPECT_EQ(command_of(module), "install/bin/python -u -m m --local_rank=0");
  scratch_.write("venv/bin/python", "", true);
  search_.virtual_env = scratch_.path("venv");
  EXPECT_EQ(command_of(module), "venv/bin/python -u -m m --local_rank=0");
  search_.python = scratch_.write("wheel/bin/python", "", true);
  EXPECT_EQ(command_of(module), "wheel/bin/python -u -m m --local_rank=0");
  search_.python = scratch_.write("wheel/notes", "");
  EXPECT_THAT(error_of(module), HasAll("ZERORUN_PYTHON='" + search_.python, "an executable"));
}

TEST_F(FindProgram, ExecutablesByPathOrInPathAndWithoutPythonNoBundledPrograms) {
  EXPECT_EQ(command_of({.name = "tool", .arguments = {"-x"}}), "path/tool -x");
  EXPECT_EQ(command_of({.name = scratch_.path("path/tool")}), "path/tool");
  const std::string script = scratch_.write("my/run.py", "", true);
  EXPECT_EQ(command_of({.name = script, .no_python = true}), "my/run.py");
  EXPECT_EQ(command_of({.name = "train", .no_python = true}), "path/train");
}

TEST_F(FindProgram, UnknownProgramsAreExplained) {
  EXPECT_THAT(error_of({.name = "trian"}), HasSubstr("did you mean 'train'?"));
  EXPECT_THAT(error_of({.name = "nothing_like_it"}), HasSubstr("bundled program (train)"));
  EXPECT_THAT(error_of({.name = "missing.py"}), HasSubstr("'missing.py' does not exist"));
  EXPECT_THAT(error_of({.name = "./missing"}), HasSubstr("'./missing' does not exist"));
  EXPECT_THAT(error_of({.name = "data"}), HasSubstr("unknown program 'data'"));
  EXPECT_THAT(error_of({.name = scratch_.path("path/data")}), HasSubstr("not an executable file"));
  EXPECT_THAT(error_of({.name = scratch_.path().string()}), HasSubstr("not an executable file"));
  EXPECT_THAT(error_of({.name = ""}), HasSubstr("empty"));
  EXPECT_THAT(error_of({.name = "m", .module = true, .no_python = true}),
              HasSubstr("--module and --no_python"));
  search_.path = "/nowhere";
  EXPECT_THAT(error_of({.name = "m", .module = true}), HasSubstr("no Python found"));
}

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
  const Environment all = rank_variables(job, rank, 4, inherited);
  const auto found = all.find(name);
  return found == all.end() ? "unset" : found->second;
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
    EXPECT_ERROR_OF(ConfigError, threads_of(threads),
                    "OMP_NUM_THREADS='" + threads + "': expected a number of threads");
  }
}

TEST(RankVariables, Rank0AloneInheritsTheSocketOfTheMeetingPoint) {
  JobSettings job = two_ranks();
  job.store_fd = 7;
  EXPECT_EQ(variable("ZERORUN_STORE_FD", job), "7");
  EXPECT_EQ(variable("ZERORUN_STORE_FD", job, {}, 1), "unset");
}

TEST(RankEnvironment, ReplacesKeepsAndDropsWhatAnEnclosingJobSet) {
  const Environment inherited =
      variables("RANK=7 HOME=/root ZERORUN_STORE_FD=7 TORCHELASTIC_USE_AGENT_STORE=True");
  EXPECT_EQ(rank_environment(inherited, {{"RANK", "0"}}), variables("RANK=0 HOME=/root"));
}

TEST(RankVariables, PythonFindsTheWorkingDirectoryFirst) {
  JobSettings job = two_ranks();
  job.python = true;
  EXPECT_EQ(variable("PYTHONPATH", job), "/work");
  EXPECT_EQ(variable("PYTHONUNBUFFERED", job), "1");
  EXPECT_EQ(variable("PYTHONPATH", job, {{"PYTHONPATH", "/lib"}}), "/work:/lib");
}

TEST(Exports, PassOnWhatSteersLibrariesAndWhatIsNamed) {
  Environment passed =
      variables("NCCL_DEBUG=INFO PYTHONPATH=/lib UCX_TLS=tcp PATH=/bin HF_HOME=/hf");
  passed["MINE"] = "a b";
  Environment environment = variables(
      "HF_TOKEN=secret ZERORUN_JOB_SECRET=s ZERORUN_STORE_FD=7 CUDA_VISIBLE_DEVICES=1 "
      "TORCHELASTIC_RUN_ID=x OTHER=c");
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
    EXPECT_ERROR_OF(ConfigError, parse_environment_file(text, "file"),
                    "file:2: expected NAME=VALUE")
        << text;
  }
}

}  // namespace
}  // namespace zerorun::testing
