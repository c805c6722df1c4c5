// The launcher as users meet it: what starts, what it sees, what comes out.

#include "launcher/ranks/cpus.h"
#include "os/socket.h"
#include "tests/common.h"
#include "tests/launcher/launcher_process.h"
#include "tests/paths.h"
#include "tests/scratch.h"

namespace zerorun {
namespace {

using testing::LauncherProcess;
using testing::lines_of;
using testing::Scratch;
using testing::shell_ranks;
using testing::wait_until_gone;
using testing::zerorun_command;

TEST(Launch, EveryRankKnowsItsPlace) {
  LauncherProcess job(shell_ranks(
      3, "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR"));
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(lines_of(job.output()),
            (std::multiset<std::string>{"0 0 3 3 0 127.0.0.1", "1 1 3 3 0 127.0.0.1",
                                        "2 2 3 3 0 127.0.0.1"}));
  EXPECT_EQ(job.errors(), "");
}

TEST(Launch, RanksShareAPortAndASecret) {
  LauncherProcess job(shell_ranks(3, "echo $MASTER_PORT $ZERORUN_JOB_SECRET"));
  EXPECT_EQ(job.wait(), 0);
  const auto lines = lines_of(job.output());
  EXPECT_EQ(lines.size(), 3);
  EXPECT_EQ(std::set<std::string>(lines.begin(), lines.end()).size(), 1);
}

TEST(Launch, OfAHelpTextHasNothingToSay) {
  const std::string train = test_paths::build() + "/libexec/zerorun/train";
  if (!std::filesystem::exists(train)) GTEST_SKIP() << "this build has no bundled program";
  LauncherProcess job(zerorun_command({"train", "--help"}), {{"CUDA_VISIBLE_DEVICES", ""}});
  EXPECT_EQ(job.wait(), 0);
  EXPECT_THAT(job.output(), HasSubstr("Usage: zerorun"));
  EXPECT_EQ(job.errors(), "");
}

TEST(Launch, WithoutGpusOneLineSaysSo) {
  LauncherProcess job(zerorun_command({"--num_gpus", "1", "true"}), {{"CUDA_VISIBLE_DEVICES", ""}});
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(job.errors(), "[zerorun] no GPU found: 1 CPU rank\n");
}

TEST(Launch, IncludeSelectsCpuRanks) {
  LauncherProcess job(zerorun_command(
      {"--accelerator", "cpu", "--include", "localhost:0,1", "sh", "-c", "echo $RANK"}));
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(lines_of(job.output()), (std::multiset<std::string>{"0", "1"}));
}

TEST(Launch, RanksAreBoundToTheirShareOfTheCpus) {
  const std::string script = "grep Cpus_allowed_list /proc/self/status | cut -f2";
  const auto cores = group_by_core(allowed_cpus());
  if (count_cpus(cores) < 2) GTEST_SKIP() << "one CPU cannot be divided";
  std::multiset<std::string> expected;
  for (const CpuShare& share : divide_cpus(cores, std::vector<std::optional<int>>(2))) {
    expected.insert(format_cpu_list(share.cpus));
  }

  LauncherProcess bound(shell_ranks(2, script));
  EXPECT_EQ(bound.wait(), 0);
  EXPECT_EQ(lines_of(bound.output()), expected);

  LauncherProcess free(shell_ranks(2, script, {"--no_bind"}));
  EXPECT_EQ(free.wait(), 0);
  const std::string all = format_cpu_list(allowed_cpus());
  EXPECT_EQ(lines_of(free.output()), (std::multiset<std::string>{all, all}));
}

TEST(Launch, StandardOutputIsDataAndStandardErrorSaysWho) {
  LauncherProcess job(shell_ranks(2, "echo out $RANK; echo err $RANK >&2"));
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(lines_of(job.output()), (std::multiset<std::string>{"out 0", "out 1"}));
  EXPECT_EQ(lines_of(job.errors()), (std::multiset<std::string>{"err 0", "[rank 1] err 1"}));
}

TEST(Launch, LinesOfRanksDoNotMix) {
  LauncherProcess job(
      shell_ranks(3, "for i in $(seq 200); do printf $RANK$RANK; printf '%s\\n' $RANK; done"));
  EXPECT_EQ(job.wait(), 0);
  const auto lines = lines_of(job.output());
  for (const char* line : {"000", "111", "222"}) EXPECT_EQ(lines.count(line), 200) << line;
  EXPECT_EQ(lines.size(), 600);
}

TEST(Launch, MoreOutputThanAnyBufferArrives) {
  LauncherProcess job(shell_ranks(2, "seq 200000"));
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(std::count(job.output().begin(), job.output().end(), '\n'), 400000);
}

TEST(Launch, OnlyRankZeroReadsStandardInput) {
  LauncherProcess job(shell_ranks(2, "read line; echo $RANK:$line"), {}, "hello\n");
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(lines_of(job.output()), (std::multiset<std::string>{"0:hello", "1:"}));
}

TEST(Launch, LogDirectoryHoldsOneFilePerRank) {
  const Scratch scratch;
  const std::string directory = (scratch.path() / "a/b").string();
  LauncherProcess job(
      shell_ranks(2, "echo out $RANK; echo err $RANK >&2", {"--log_dir", directory}));
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(job.output(), "out 0\n");
  EXPECT_EQ(job.errors(), "err 0\n");
  for (const char* rank : {"0", "1"}) {
    const std::string log = scratch.read(std::string("a/b/rank") + rank + ".log");
    EXPECT_EQ(lines_of(log),
              (std::multiset<std::string>{std::string("out ") + rank, std::string("err ") + rank}));
  }
}

TEST(Launch, AReaderThatGoesAwayEndsTheJob) {
  LauncherProcess pipeline(
      {"sh", "-c",
       zerorun_command({""}).front() + " --accelerator cpu --num_gpus 2 yes | head -n 1"});
  EXPECT_EQ(pipeline.wait(), 0);
  EXPECT_EQ(pipeline.output(), "y\n");
  EXPECT_THAT(pipeline.errors(), HasSubstr("SIGPIPE"));
  EXPECT_THAT(pipeline.members(), IsEmpty());
}

TEST(DryRun, PrintsThePlanAndStartsNothing) {
  const Scratch scratch;
  const std::string file = (scratch.path() / "started").string();
  LauncherProcess job(shell_ranks(2, "touch " + file, {"--dry_run", "--master_port", "0"}));
  EXPECT_EQ(job.wait(), 0);
  EXPECT_FALSE(std::filesystem::exists(file));
  const std::string plan = job.output();
  for (const char* text : {"rank 0 on ", "rank 1 on ", "RANK=1\n", "WORLD_SIZE=2\n",
                           "OMP_NUM_THREADS=", "MASTER_PORT=", "cpus ", "command "}) {
    EXPECT_THAT(plan, HasSubstr(text));
  }
  EXPECT_THAT(plan, HasSubstr("sh -c 'touch " + file + "'"));
  EXPECT_THAT(plan, HasSubstr("ZERORUN_JOB_SECRET=<secret>"));
}

// A command line that cannot be meant: exit code 2, one line.
void expect_usage_error(const std::vector<std::string>& arguments, const std::string& message) {
  LauncherProcess job(zerorun_command(arguments));
  EXPECT_EQ(job.wait(), 2) << message;
  EXPECT_THAT(job.errors(), StartsWith("[zerorun] error: "));
  EXPECT_THAT(job.errors(), HasSubstr(message));
  EXPECT_EQ(std::count(job.errors().begin(), job.errors().end(), '\n'), 1) << job.errors();
  EXPECT_EQ(job.output(), "");
}

TEST(UsageError, HasExitCode2AndOneLine) {
  expect_usage_error({"plan", "--model", "/dev/zero"}, "--model /dev/zero: expected a file");
  expect_usage_error({"--interface", "eth77", "true"},
                     "--interface: 'eth77' is neither a network interface nor an address");
  const Scratch scratch;
  const std::string binary = scratch.write("binary", "no program\n", true).string();
  const std::string file = scratch.write("file", "").string();
  expect_usage_error({"ckpt", "show", file}, "zerorun ckpt show: " + file + ": expected a folder");
  expect_usage_error({"ckpt", "diff", file, file}, "zerorun ckpt diff: " + file);
  expect_usage_error({"ckpt", "prune", file, "--keep_last", "-1"}, "as in --option=-1");
  expect_usage_error({}, "no PROGRAM");
  expect_usage_error({"--num_gpux", "2", "true"}, "did you mean --num_gpus?");
  expect_usage_error({"--num_gpus", "0", "true"}, "--num_gpus '0'");
  expect_usage_error({"no_such_program"}, "unknown program 'no_such_program'");
  expect_usage_error({"plna", "--model", "gpt2"}, "did you mean 'plan'?");
  expect_usage_error({"--include", "localhost:x", "true"}, "slot 'x' is not a number");
  expect_usage_error({"--accelerator", "cpu", "--log_dir", file, "true"}, "--log_dir");
  expect_usage_error({"--accelerator", "cpu", binary}, "cannot execute " + binary);
  expect_usage_error({"plan"}, "--model is required; see zerorun plan --help");
  expect_usage_error({"plan", "--model", "gpt9"},
                     "--model 'gpt9' (did you mean \"gpt2\"?): expected nano, mini");
  expect_usage_error({"plan", "--model", "gpt2", "--world_size", "0"},
                     "--world_size: expected an integer from 1 to 1048576, got '0'; see zerorun "
                     "plan --help");
  expect_usage_error({"plan", "--modle", "gpt2"}, "unknown option --modle; did you mean --model?");
  expect_usage_error({"plan", "--model", "gpt2", "--world-sise=2"}, "did you mean --world_size?");
  expect_usage_error({"ckpt", "verify", "--al", "x"},
                     "unknown option --al; see zerorun ckpt verify --help");
  expect_usage_error({"plan", "--model", "gpt2", "--fit", ""}, "--fit: the value is empty");
  expect_usage_error({"plan", "--model", "gpt2", "--gpu_memory", "80"},
                     "--gpu_memory '80' has no unit: expected a size such as 80GB or 80GiB");
  expect_usage_error({"bench"}, "zerorun bench needs a command: nvme; see zerorun bench --help");
  expect_usage_error({"bench", "foo"}, "zerorun bench has no command 'foo'; it has nvme");
  expect_usage_error({"bench", "nvme"}, "DIR is required; see zerorun bench nvme --help");
  expect_usage_error({"bench", "nvme", "/no/such"}, "bench nvme: /no/such: ");
  expect_usage_error({"version", "x"}, "not expected: x");
  expect_usage_error({"config", "chekc", "x"}, "did you mean 'check'?");
  expect_usage_error({"config", "show", file, "--world_size", "0"}, "--world_size");
  expect_usage_error({"ckpt"}, "see zerorun ckpt --help");
  expect_usage_error({"ckpt", "verfy", "x"}, "did you mean 'verify'?");
  expect_usage_error({"ckpt", "verify"}, "DIR is required");
  expect_usage_error({"ckpt", "verify", file}, file);
}

TEST(Tools, VersionAndHelpGoToStandardOutput) {
  LauncherProcess version(zerorun_command({"version"}));
  EXPECT_EQ(version.wait(), 0);
  EXPECT_THAT(version.output(), StartsWith("zerorun "));
  LauncherProcess option(zerorun_command({"--version"}));
  EXPECT_EQ(option.wait(), 0);
  EXPECT_EQ(option.output(), version.output());
  LauncherProcess help(zerorun_command({"--help"}));
  EXPECT_EQ(help.wait(), 0);
  EXPECT_THAT(help.output(), HasSubstr("Usage: zerorun"));
  for (const char* tool :
       {"config", "plan", "bench nvme", "ckpt verify", "env", "doctor", "version"}) {
    EXPECT_THAT(help.output(), HasSubstr("zerorun " + std::string(tool)));
  }
}

TEST(Tools, ConfigChecksShowsAndDocuments) {
  const Scratch scratch;
  const std::string file =
      scratch
          .write("ds_config.json", R"({"train_batch_size": 8, "zero_optimization": {"stage": 2}})")
          .string();
  for (const auto& [arguments, expected] :
       std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"check", file}, "stage"},
           {{"show", file, "--world_size", "2"}, "\"train_micro_batch_size_per_gpu\": 4"},
           {{"schema"}, "json-schema.org"},
           {{"docs"}, "zero_optimization"}}) {
    std::vector<std::string> command = {"config"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    LauncherProcess tool(zerorun_command(command));
    EXPECT_EQ(tool.wait(), 0) << arguments.front();
    EXPECT_THAT(tool.output(), HasSubstr(expected));
    EXPECT_EQ(tool.errors(), "");
  }
}

TEST(Tools, ConfigNamesEveryProblem) {
  const Scratch scratch;
  const std::string file =
      scratch.write("ds_config.json", R"({"zero_optimisation": {}, "bf16": {"enabled": 3}})")
          .string();
  LauncherProcess tool(zerorun_command({"config", "check", file}));
  EXPECT_EQ(tool.wait(), 2);
  EXPECT_THAT(tool.errors(), HasSubstr("zero_optimization"));
  EXPECT_THAT(tool.errors(), HasSubstr("/bf16/enabled"));
}

TEST(Tools, HelpIsPlain) {
  for (const std::vector<std::string>& tool : {std::vector<std::string>{},
                                               {"config"},
                                               {"config", "check"},
                                               {"config", "show"},
                                               {"plan"},
                                               {"bench"},
                                               {"bench", "nvme"},
                                               {"ckpt"},
                                               {"ckpt", "verify"},
                                               {"env"},
                                               {"doctor"}}) {
    std::vector<std::string> command = tool;
    command.emplace_back("--help");
    LauncherProcess process(zerorun_command(command));
    EXPECT_EQ(process.wait(), 0);
    const std::string help = process.output();
    EXPECT_THAT(help, HasSubstr("Exit code: "));
    for (const char* type : {" TEXT", " INT", " UINT", " FLOAT", " in [", "\n\n\n"}) {
      EXPECT_THAT(help, Not(HasSubstr(type)));
    }
    std::istringstream lines(help);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100U) << line;
  }
}

TEST(Tools, DoctorExaminesThisMachineAndRunsTwoRanks) {
  const Scratch scratch;
  const Listener listener = reserve_port("127.0.0.1", 0);
  const std::vector<std::string> words = {
      "doctor", "--folder", scratch.path(), "--port", std::to_string(listener.port), "--json"};
  LauncherProcess doctor(zerorun_command(words),
                         {{"CUDA_VISIBLE_DEVICES", ""}, {"ZERORUN_PYTHON", "/none"}});
  EXPECT_EQ(doctor.wait(), 0);
  EXPECT_THAT(doctor.output(), HasSubstr("ZERORUN_PYTHON='/none': expected an executable file"));
  EXPECT_THAT(doctor.output(), HasSubstr("2 ranks (shm) on cpu sum 1 MiB in "));
  EXPECT_EQ(doctor.errors(), "");
  listen_on(listener);
  LauncherProcess busy(zerorun_command(words), {{"CUDA_VISIBLE_DEVICES", ""}});
  EXPECT_EQ(busy.wait(), 1);
  EXPECT_THAT(busy.output(), HasSubstr("\"state\": \"problem\""));
  EXPECT_THAT(busy.errors(), HasSubstr("1 checks found a problem"));
}

TEST(Tools, OnlyBadInputEndsWithCode2) {
  const Scratch scratch;
  LauncherProcess none(zerorun_command({"ckpt", "verify", "/no/such"}));
  EXPECT_EQ(none.wait(), 2);
  scratch.write("latest", "no\x1b[31mtag\n");
  LauncherProcess damaged(zerorun_command({"ckpt", "verify", scratch.path().string()}));
  EXPECT_EQ(damaged.wait(), 1);
  EXPECT_THAT(damaged.errors(), Not(HasSubstr("\x1b")));
  EXPECT_THAT(damaged.errors(), HasSubstr("\\x1b[31m"));
  LauncherProcess full(
      zerorun_command({"plan", "--model", "350M", "--gpu_memory", "80GB", "--fit", "/dev/full"}));
  EXPECT_EQ(full.wait(), 1);
  EXPECT_THAT(full.errors(), HasSubstr("cannot write /dev/full: No space left"));
}

TEST(Tools, PlanWritesThroughStandardOutput) {
  LauncherProcess plan(
      zerorun_command({"plan", "--model", "350M", "--gpu_memory", "80GB", "--fit", "/dev/stdout"}));
  EXPECT_EQ(plan.wait(), 0);
  EXPECT_THAT(plan.output(), StartsWith("{\n"));
  EXPECT_THAT(plan.output(), HasSubstr("bytes of a rank"));
  EXPECT_TRUE(std::filesystem::is_symlink("/dev/stdout"));
}

TEST(Tools, ADiskIsMeasuredWithAQuarterOfAGibAtLeast) {
  LauncherProcess enough(zerorun_command({"bench", "nvme", "/no/such", "--gib", "0.25"}));
  EXPECT_EQ(enough.wait(), 2);
  EXPECT_THAT(enough.errors(), HasSubstr("bench nvme: /no/such: No such file"));
  for (const std::string bad : {"0.1", "nan", "1x"}) {
    LauncherProcess less(zerorun_command({"bench", "nvme", "/no/such", "--gib", bad}));
    EXPECT_EQ(less.wait(), 2);
    EXPECT_THAT(less.errors(),
                HasSubstr("--gib: expected a number from 0.25 to 1024, got '" + bad + "'"));
  }
}

TEST(Tools, EnvPrintsTheMachineAndTheVariables) {
  LauncherProcess env(zerorun_command({"env"}),
                      {{"OMP_NUM_THREADS", "17"}, {"ZERORUN_JOB_SECRET", "hidden"}});
  EXPECT_EQ(env.wait(), 0);
  EXPECT_THAT(env.output(), HasSubstr("\nCPUs "));
  EXPECT_THAT(env.output(), HasSubstr("\nGPUs "));
  EXPECT_THAT(env.output(), HasSubstr("\nCUDA "));
  EXPECT_THAT(env.output(), HasSubstr("OMP_NUM_THREADS"));
  EXPECT_THAT(env.output(), HasSubstr("= 17"));
  EXPECT_THAT(env.output(), Not(HasSubstr("hidden")));
}

TEST(Launch, CtrlCEndsAJobWhoseOutputNobodyReads) {
  const Scratch folder;
  // More than a pipe holds, and less than the launcher does.
  LauncherProcess job(shell_ranks(
      1, "echo $$ > " + (folder.path() / "pid").string() + "; head -c 500000 /dev/zero"));
  pid_t rank = 0;
  while (!(std::istringstream(folder.read("pid")) >> rank)) std::this_thread::yield();
  ASSERT_TRUE(wait_until_gone({rank}));
  kill(job.pid(), SIGINT);
  EXPECT_TRUE(wait_until_gone({job.pid()}));
  EXPECT_EQ(job.wait(), 128 + SIGINT);
}

}  // namespace
}  // namespace zerorun
