// The launcher as users meet it: what starts, what it sees, what comes out.

#include "os/socket.h"
#include "tests/launcher/cluster_choice.h"
#include "tests/launcher/launcher_process.h"

namespace zerorun::testing {
namespace {

const std::map<std::string, std::string> kNoGpus = {{"CUDA_VISIBLE_DEVICES", ""}};

INSTANTIATE_TEST_SUITE_P(
    OfLaunch, JobTest,
    ::testing::Values(
        JobCase{
            "every rank knows its place",
            shell_ranks(3,
                        "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK "
                        "$MASTER_ADDR $ROLE_NAME $TORCHELASTIC_RUN_ID"),
            ended(0, "",
                  lines_are({"0 0 3 3 0 127.0.0.1 default none", "1 1 3 3 0 127.0.0.1 default none",
                             "2 2 3 3 0 127.0.0.1 default none"}))},
        JobCase{"without GPUs one line says so", zerorun_command({"--num_gpus", "1", "true"}),
                ended(0, "[zerorun] no GPU found: 1 CPU rank\n"), 0, 0, kNoGpus},
        JobCase{"standard output is data and standard error says who",
                shell_ranks(2, "echo out $RANK; echo err $RANK >&2"),
                ended(0, lines_are({"err 0", "[rank 1] err 1"}), lines_are({"out 0", "out 1"}))},
        JobCase{"a slot that a CPU host has not",
                zerorun_command({"--include", "localhost:9999", "true"}),
                ended(2, HasSubstr("names slot 9999, but this host has"))},
        JobCase{"only rank 0 reads standard input",
                shell_ranks(2, "read line; echo $RANK:$line"),
                ended(0, ::testing::_, lines_are({"0:hello", "1:"})),
                0,
                0,
                {},
                "hello\n"},
        JobCase{"a reader that goes away ends the job",
                {"sh", "-c",
                 zerorun_command({""}).front() + " --accelerator cpu --num_gpus 2 yes | head -n 1"},
                ended(0, HasSubstr("SIGPIPE"), "y\n")},
        JobCase{"damage is shown without its control characters",
                {"sh", "-c",
                 "printf 'no\\033[31mtag' > $SCRATCH/latest; exec \"$0\" ckpt verify $SCRATCH",
                 zerorun_command({}).front()},
                ended(1, HasAll(Not(HasSubstr("\x1b")), "\\x1b[31m"))},
        JobCase{"a disk is measured with a quarter of a GiB at least",
                zerorun_command({"bench", "nvme", "/no/such", "--gib", "0.25"}),
                ended(2, HasSubstr("bench nvme: /no/such: No such file"))},
        JobCase{"the machine and its variables",
                zerorun_command({"env"}),
                ended(0, ::testing::_,
                      HasAll("\nCPUs ", "\nGPUs ", "\nCUDA ", "OMP_NUM_THREADS", "= 17",
                             Not(HasSubstr("hidden")))),
                0,
                0,
                {{"OMP_NUM_THREADS", "17"}, {"ZERORUN_JOB_SECRET", "hidden"}}}));

// Commands for DeepSpeed's launcher and torchrun, started by zerorun as they are.
JobCase foreign(const std::string& label, std::vector<std::string> options,
                const TextMatcher& errors = "", const std::string& output = "2\n") {
  options.insert(options.begin(),
                 {"sh", "-c",
                  "echo localhost slots=2 > $SCRATCH/hosts; "
                  "export TMPDIR=$SCRATCH; exec \"$@\"",
                  "sh", zerorun_command({}).front(), "--accelerator", "cpu", "--no_python"});
  options.insert(options.end(), {"sh", "-c", "test $RANK = 0 || exit 0; echo $WORLD_SIZE"});
  return {label, options, ended(0, errors, output)};
}

INSTANTIATE_TEST_SUITE_P(
    OfOthers, JobTest,
    ::testing::Values(
        foreign("hostfile that names this host", {"--hostfile", "$SCRATCH/hosts"}),
        foreign("hostfile that is missing", {"--hostfile", "/no/such", "--num_gpus=2"},
                HasSubstr("/no/such does not exist: ranks run on this host alone")),
        foreign("pdsh", {"--launcher=pdsh", "--num_gpus=2", "--master_port=0"}),
        foreign("torchrun's c10d",
                {"--nproc_per_node=2", "--nnodes=1", "--rdzv_backend=c10d",
                 "--rdzv_endpoint=localhost:0", "--rdzv_id=7", "--max_restarts=0"}),
        foreign("torchrun's standalone", {"--standalone", "--nproc-per-node=2", "--role=x"}),
        foreign("tee", {"--nproc_per_node=2", "--tee=3"}, HasSubstr("output is in ")),
        foreign("tee with a folder",
                {"--nproc_per_node=2", "-t", "3", "--log_dir", "$SCRATCH/logs"}),
        foreign("redirects", {"--num_gpus=2", "-r", "3", "--log_dir", "$SCRATCH/logs"}, "", ""),
        foreign("log of each rank", {"--num_gpus=2", "--enable_each_rank_log", "$SCRATCH/logs"}, "",
                ""),
        foreign("monitor", {"--num_gpus=2", "--monitor_interval=1"},
                HasSubstr("has no meaning here")),
        foreign("quiet", {"--num_gpus=2", "--monitor_interval=1", "-q"}),
        foreign("DeepSpeed's binding", {"--num_gpus=2", "--bind_cores_to_rank", "--save_pid"}),
        foreign("a restart that is not needed", {"--num_gpus=2", "--max_restarts=1"})));

TEST(Ranks, HaveTheVariablesOfTorchrunAndDeepSpeed) {
  const std::string script =
      "test $RANK = 1 || exit 0; echo $LOCAL_RANK $GROUP_RANK $GROUP_WORLD_SIZE $ROLE_RANK "
      "$ROLE_WORLD_SIZE $ROLE_NAME $LOCAL_SIZE $CROSS_RANK $CROSS_SIZE $TORCHELASTIC_RESTART_COUNT "
      "$TORCHELASTIC_MAX_RESTARTS $TORCHELASTIC_RUN_ID $TORCHELASTIC_USE_AGENT_STORE; "
      "test -d $(dirname $TORCHELASTIC_ERROR_FILE) && echo $TORCHELASTIC_ERROR_FILE";
  LauncherProcess job(
      shell_ranks(2, script, words_of("--rdzv_id=run7 --max_restarts=3 --role=actor")));
  EXPECT_EQ(job.read_line(), "1 0 1 1 2 actor 2 0 1 0 3 run7 False");
  const std::string file = job.read_line();
  EXPECT_EQ(job.wait(), 0);
  EXPECT_THAT(file, EndsWith("/error_1.json"));
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(file).parent_path())) << "removed";
}

TEST(Ranks, AreBoundToTheirShareOfTheCpus) {
  const std::string script = "grep Cpus_allowed_list /proc/self/status | cut -f2";
  const auto cores = group_by_core(allowed_cpus());
  if (count_cpus(cores) < 2) GTEST_SKIP() << "one CPU cannot be divided";
  std::multiset<std::string> expected;
  for (const CpuShare& share : divide_cpus(cores, std::vector<std::optional<int>>(2))) {
    expected.insert(format_cpu_list(share.cpus));
  }
  EXPECT_THAT(LauncherProcess(shell_ranks(2, script)).end(),
              ended(0, ::testing::_, lines_are(expected)));
  const std::string all = format_cpu_list(allowed_cpus());
  EXPECT_THAT(LauncherProcess(shell_ranks(2, script, {"--no_bind"})).end(),
              ended(0, ::testing::_, lines_are({all, all})));
}

TEST(OutputOfRanks, LinesOfRanksDoNotMix) {
  LauncherProcess job(
      shell_ranks(3, "for i in $(seq 20000); do printf $RANK$RANK; printf '%s\\n' $RANK; done"));
  EXPECT_EQ(job.wait(), 0);
  const auto lines = lines_of(job.output());
  for (const char* line : {"000", "111", "222"}) EXPECT_EQ(lines.count(line), 20000) << line;
  EXPECT_EQ(lines.size(), 60000);
}

TEST(OutputOfRanks, TheLogDirectoryHoldsOneFilePerRank) {
  LauncherProcess job(
      shell_ranks(2, "echo out $RANK; echo err $RANK >&2", {"--log_dir", "$SCRATCH/a/b"}));
  EXPECT_THAT(job.end(), ended(0, "err 0\n", "out 0\n"));
  for (const std::string rank : {"0", "1"}) {
    EXPECT_THAT(job.scratch().read("a/b/rank" + rank + ".log"),
                lines_are({"out " + rank, "err " + rank}));
  }
}

TEST(DryRun, PrintsThePlanAndStartsNothing) {
  LauncherProcess job(
      shell_ranks(2, "touch $SCRATCH/started", {"--dry_run", "--master_port", "0"}));
  EXPECT_EQ(job.wait(), 0);
  EXPECT_FALSE(std::filesystem::exists(job.scratch().path("started")));
  EXPECT_THAT(job.output(),
              HasAll("rank 0 on ", "rank 1 on ", "RANK=1\n", "WORLD_SIZE=2\n",
                     "OMP_NUM_THREADS=", "MASTER_PORT=", "cpus ", "command ",
                     "sh -c 'touch $SCRATCH/started'", "ZERORUN_JOB_SECRET=<secret>"));
}

// A command line that cannot be meant: exit code 2, one line.
TEST(UsageError, HasExitCode2AndOneLine) {
  const Scratch scratch;
  const std::string binary = scratch.write("binary", "no program\n", true).string();
  const std::string file = scratch.write("file", "").string();
  for (const auto& [words, message] : std::vector<std::pair<std::string, std::string>>{
           {"plan --model /dev/zero", "--model /dev/zero: expected a file"},
           {"--interface eth77 true",
            "--interface: 'eth77' is neither a network interface nor an address"},
           {"ckpt show " + file, "zerorun ckpt show: " + file + ": expected a folder"},
           {"ckpt diff " + file + " " + file, "zerorun ckpt diff: " + file},
           {"ckpt prune " + file + " --keep_last -1", "as in --option=-1"},
           {"ckpt verify " + file, file},
           {"ckpt verify --al x", "unknown option --al; see zerorun ckpt verify --help"},
           {"ckpt verfy x", "did you mean 'verify'?"},
           {"", "no PROGRAM"},
           {"plna --model gpt2", "did you mean 'plan'?"},
           {"--accelerator cpu --log_dir " + file + " true", "--log_dir"},
           {"--accelerator cpu " + binary, "cannot execute " + binary},
           {"plan", "--model is required; see zerorun plan --help"},
           {"plan --model gpt2 --world_size 0",
            "--world_size: expected an integer from 1 to 1048576, got '0'; see zerorun plan "
            "--help"},
           {"plan --model gpt2 --world-sise=2", "did you mean --world_size?"},
           {"plan --model gpt2 --fit ''", "--fit: the value is empty"},
           {"bench", "zerorun bench needs a command: nvme; see zerorun bench --help"},
           {"bench foo", "zerorun bench has no command 'foo'; it has nvme"},
           {"bench nvme", "DIR is required; see zerorun bench nvme --help"},
           {"bench nvme /no/such --gib 0.1", "--gib: expected a number from 0.25 to 1024, got '0"},
           {"bench nvme /no/such --gib nan", "--gib: expected a number from 0.25 to 1024, got 'n"},
           {"bench nvme /no/such --gib 1x", "--gib: expected a number from 0.25 to 1024, got '1x"},
           {"version x", "not expected: x"},
           {"config show " + file + " --world_size 0", "--world_size"}}) {
    std::vector<std::string> command = zerorun_command(words_of(words));
    std::replace(command.begin(), command.end(), std::string("''"), std::string());
    LauncherProcess job(command);
    EXPECT_THAT(job.end(), ended(2, HasAll(StartsWith("[zerorun] error: "), message), ""));
    EXPECT_THAT(lines_of(job.errors()), SizeIs(1)) << job.errors();
  }
}

TEST(Tools, TheHelpNamesThemAndTheVersionIsAnOption) {
  const auto output_of = [](const std::string& option) {
    LauncherProcess job(zerorun_command({option}));
    EXPECT_EQ(job.wait(), 0);
    return job.output();
  };
  EXPECT_EQ(output_of("--version"), output_of("version"));
  const std::string help = output_of("-h");
  EXPECT_THAT(help, HasSubstr("Usage: zerorun"));
  for (const char* tool :
       {"config", "plan", "bench nvme", "ckpt verify", "env", "doctor", "version"}) {
    EXPECT_THAT(help, HasSubstr("zerorun " + std::string(tool)));
  }
}

TEST(Tools, ConfigChecksShowsAndDocuments) {
  const Scratch scratch;
  const std::string file = scratch.write(
      "ds_config.json", R"({"train_batch_size": 8, "zero_optimization": {"stage": 2}})");
  for (const auto& [arguments, expected] :
       std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"config", "check", file}, "stage"},
           {{"config", "show", file, "--world_size", "2"}, "\"train_micro_batch_size_per_gpu\": 4"},
           {{"config", "schema"}, "json-schema.org"},
           {{"config", "docs"}, "zero_optimization"}}) {
    EXPECT_THAT(LauncherProcess(zerorun_command(arguments)).end(),
                ended(0, "", HasSubstr(expected)));
  }
  const std::string bad =
      scratch.write("bad.json", R"({"zero_optimisation": {}, "bf16": {"enabled": 3}})");
  EXPECT_THAT(LauncherProcess(zerorun_command({"config", "check", bad})).end(),
              ended(2, HasAll("zero_optimization", "/bf16/enabled")));
}

TEST(Tools, DoctorExaminesThisMachineAndRunsTwoRanks) {
  const Scratch scratch;
  const Listener listener = reserve_port("127.0.0.1", 0);
  const std::vector<std::string> words = {
      "doctor", "--folder", scratch.path(), "--port", std::to_string(listener.port), "--json"};
  EXPECT_THAT(LauncherProcess(zerorun_command(words),
                              {{"CUDA_VISIBLE_DEVICES", ""}, {"ZERORUN_PYTHON", "/none"}})
                  .end(),
              ended(0, "",
                    HasAll("ZERORUN_PYTHON='/none': expected an executable file",
                           "2 ranks (shm) on cpu sum 1 MiB in ")));
  listen_on(listener);
  EXPECT_THAT(LauncherProcess(zerorun_command(words), kNoGpus).end(),
              ended(1, HasSubstr("1 checks found a problem"), HasSubstr("\"state\": \"problem\"")));
}

TEST(OutputOfRanks, ThatNobodyReadsDoesNotHoldAJobAfterCtrlC) {
  // More than a pipe holds, and less than the launcher does.
  LauncherProcess job(shell_ranks(1, "echo $$ > $SCRATCH/pid; head -c 500000 /dev/zero"));
  pid_t rank = 0;
  while (!(std::istringstream(job.scratch().read("pid")) >> rank)) std::this_thread::yield();
  ASSERT_TRUE(wait_until_gone({rank}));
  kill(job.pid(), SIGINT);
  EXPECT_TRUE(wait_until_gone({job.pid()}));
  EXPECT_EQ(job.wait(), 128 + SIGINT);
}

}  // namespace
}  // namespace zerorun::testing
