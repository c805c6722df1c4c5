#include "launcher/options.h"

#include "tests/common.h"
#include "tests/error_of.h"
#include "tests/launcher/cluster_choice.h"
#include "zerorun/error.h"

namespace zerorun {
namespace {

using testing::words_of;

std::string option_error(const std::vector<std::string>& arguments) {
  return error_of([&] { parse_options(arguments); });
}

TEST(Options, DefaultsAreAFreePortAndAllDevices) {
  const LaunchOptions options = parse_options({"train"});
  EXPECT_EQ(options.program.name, "train");
  EXPECT_THAT(options.program.arguments, IsEmpty());
  EXPECT_EQ(options.request.count, "");
  EXPECT_EQ(options.request.accelerator, Accelerator::automatic);
  EXPECT_EQ(options.hosts.master_addr, "");
  EXPECT_EQ(options.hosts.master_port, 0);
  EXPECT_EQ(options.grace_period, std::chrono::seconds(30));
  EXPECT_FALSE(options.dry_run);
}

TEST(Options, EverySpellingOfTheRankCount) {
  for (const char* name : {"--num_gpus", "--num-gpus", "--nproc_per_node", "--nproc-per-node",
                           "--num_accelerators", "--num-accelerators"}) {
    EXPECT_EQ(parse_options({name, "2", "train"}).request.count, "2") << name;
    EXPECT_EQ(parse_options({std::string(name) + "=2", "train"}).request.count, "2") << name;
  }
  EXPECT_EQ(parse_options({"--num_gpus", "-1", "train"}).request.count, "-1");
}

TEST(Options, LocalRankIsAlwaysAutomaticOrNever) {
  const auto chosen = [](std::vector<std::string> options) {
    options.emplace_back("x.py");
    return parse_options(options).program.local_rank;
  };
  EXPECT_EQ(chosen({}), LocalRank::automatic);
  EXPECT_EQ(chosen({"--local_rank", "auto"}), LocalRank::automatic);
  EXPECT_EQ(chosen({"--local_rank=always"}), LocalRank::always);
  EXPECT_EQ(chosen({"--local-rank", "never"}), LocalRank::never);
  EXPECT_EQ(chosen({"--use_env"}), LocalRank::never);
  EXPECT_THROW(chosen({"--local_rank=1"}), ConfigError);
}

TEST(Options, ReadsAllOfThem) {
  const LaunchOptions options =
      parse_options({"-i", "localhost:0,2", "--accelerator", "cpu", "--master_addr", "::1",
                     "--master-port=29501", "--log-dir", "logs", "--grace_period", "0.5",
                     "--no_bind", "--dry-run", "--no_local_rank", "-m", "my.train", "x"});
  EXPECT_EQ(options.request.include, "localhost:0,2");
  EXPECT_EQ(options.request.accelerator, Accelerator::cpu);
  EXPECT_EQ(options.hosts.master_addr, "::1");
  EXPECT_EQ(options.hosts.master_port, 29501);
  EXPECT_EQ(options.output.log_dir, "logs");
  EXPECT_EQ(options.grace_period, std::chrono::milliseconds(500));
  EXPECT_FALSE(options.cpus.bind);
  EXPECT_TRUE(options.dry_run);
  EXPECT_TRUE(options.program.module);
  EXPECT_EQ(options.program.local_rank, LocalRank::never);
  EXPECT_FALSE(options.program.no_python);
  EXPECT_EQ(options.program.name, "my.train");
  EXPECT_THAT(options.program.arguments, ElementsAre("x"));
}

TEST(Options, TheProgramsArgumentsAreUntouched) {
  const LaunchOptions options =
      parse_options({"--num_gpus", "2", "train", "--num_gpus", "3", "--num-gpus=4", "--", "-x",
                     "--help", "", "--no_such_option"});
  EXPECT_EQ(options.request.count, "2");
  EXPECT_FALSE(options.help);
  EXPECT_THAT(options.program.arguments, ElementsAre("--num_gpus", "3", "--num-gpus=4", "--", "-x",
                                                     "--help", "", "--no_such_option"));
}

TEST(Options, ShortOptionsTakeAttachedValues) {
  EXPECT_EQ(parse_options({"-ilocalhost:1", "train"}).request.include, "localhost:1");
  EXPECT_EQ(parse_options({"-e=localhost:1", "train"}).request.exclude, "localhost:1");
}

TEST(Options, DoubleDashEndsTheLaunchersPart) {
  const LaunchOptions options = parse_options({"--no_bind", "--", "train", "a"});
  EXPECT_FALSE(options.cpus.bind);
  EXPECT_EQ(options.program.name, "train");
  EXPECT_THAT(options.program.arguments, ElementsAre("a"));
}

TEST(Options, TheLastOneWins) {
  EXPECT_EQ(parse_options({"--num_gpus", "2", "--num-gpus", "3", "train"}).request.count, "3");
}

TEST(Options, AnEmptyFilterOrHostfileIsNoneAndOtherEmptyValuesAreErrors) {
  EXPECT_EQ(parse_options({"--include=", "--exclude", "", "train"}).request.include, "");
  EXPECT_EQ(parse_options({"--num_gpus", "2", "-i", "", "train"}).program.name, "train");
  EXPECT_EQ(parse_options({"--hostfile", "", "train"}).hosts.hostfile, "");
  EXPECT_EQ(parse_options({"--hostfile=", "train"}).hosts.hostfile, "");
  EXPECT_EQ(parse_options({"train"}).hosts.hostfile, std::nullopt);
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--num_gpus=", "train"},
        {"--log_dir", "", "train"},
        {"--master_addr", "", "train"},
        {"--grace_period=", "train"}}) {
    EXPECT_THAT(option_error(arguments), HasSubstr(": the value is empty; give one, or leave"));
  }
}

TEST(Options, OneHostMayBeSpelledOut) {
  const LaunchOptions options =
      parse_options({"--nnodes", "1", "--node_rank=0", "--standalone", "train"});
  EXPECT_EQ(options.program.name, "train");
  EXPECT_EQ(parse_options({"--nnodes=1:1", "train"}).program.name, "train");
}

TEST(Options, OfHostsAreRead) {
  std::vector<std::string> arguments = words_of(
      "-H hosts --nnodes=1:4 --node-rank 2 --launcher pdsh --ssh_port=22 --no_ssh "
      "--no_ssh_check --force_multi --interface=eth1 --export A --export=B --venv_script=/v "
      "--local_addr=h --comm_timeout=1.5 --bind_core_list=0-3,8 --save_pid --launcher_args");
  arguments.insert(arguments.end(), {"-v  -o 'A b' \"\"", "x"});
  const LaunchOptions options = parse_options(arguments);
  EXPECT_EQ(options.hosts.hostfile, "hosts");
  EXPECT_EQ(options.hosts.count, "1:4");
  EXPECT_EQ(options.hosts.node_rank, 2);
  EXPECT_EQ(options.hosts.launcher, "pdsh");
  EXPECT_THAT(options.remote.arguments, ElementsAre("-v", "-o", "A b", ""));
  EXPECT_EQ(options.remote.ssh_port, 22);
  EXPECT_TRUE(options.hosts.by_hand);
  EXPECT_FALSE(options.remote.check);
  EXPECT_TRUE(options.hosts.force_multi);
  EXPECT_EQ(options.remote.interface, "eth1");
  EXPECT_THAT(options.remote.exports, ElementsAre("A", "B"));
  EXPECT_EQ(options.remote.venv_script, "/v");
  EXPECT_EQ(options.hosts.local_addr, "h");
  EXPECT_EQ(options.request.comm_timeout_s, 1.5);
  EXPECT_EQ(options.cpus.list, "0-3,8");
  EXPECT_TRUE(options.save_pid);
  EXPECT_THAT(option_error({"--launcher_args", "'a", "x"}), HasSubstr("a quote is not closed"));
  EXPECT_THAT(option_error({"--launcher=rsh", "x"}), HasSubstr("expected one of ssh, pdsh"));
}

// Every option of torchrun, as its help lists them.
TEST(Options, OfTorchrunAreRead) {
  const LaunchOptions options = parse_options(words_of(
      "--nnodes=1:1 --nproc-per-node=gpu --rdzv-backend=c10d --rdzv-endpoint=localhost:0 "
      "--rdzv-id=job7 --rdzv-conf=timeout=60,read_timeout=5 --max-restarts=0 "
      "--monitor-interval=5 --start-method=spawn --role=trainer --log-dir=logs -r 3 "
      "-t 0:1,1:2 --local-ranks-filter=0,1 --node-rank=0 --master-addr=h --master-port=1 "
      "--signals-to-handle=SIGTERM,SIGINT --shutdown-timeout=3 --numa-binding=node --use-env "
      "-m pkg.mod --lr=1"));
  EXPECT_EQ(options.request.count, "gpu");
  EXPECT_EQ(options.hosts.backend, "c10d");
  EXPECT_EQ(options.hosts.endpoint, "localhost:0");
  EXPECT_EQ(options.hosts.run_id, "job7");
  EXPECT_EQ(options.hosts.join_timeout_s, 60);
  EXPECT_EQ(options.restarts.max_restarts, 0);
  EXPECT_EQ(options.request.role, "trainer");
  EXPECT_EQ(options.output.redirects, "3");
  EXPECT_EQ(options.output.tee, "0:1,1:2");
  EXPECT_THAT(options.output.shown_ranks, ElementsAre(0, 1));
  EXPECT_EQ(options.grace_period, std::chrono::seconds(3));
  EXPECT_TRUE(options.program.module);
  EXPECT_EQ(options.program.name, "pkg.mod");
  EXPECT_THAT(options.notes,
              ::testing::UnorderedElementsAre(
                  HasSubstr("--monitor_interval has no meaning here: the launcher notices the end"),
                  HasSubstr("--start_method has no meaning here: every rank is a separate program"),
                  HasSubstr("--numa_binding has no meaning here: ranks are bound"),
                  HasSubstr("--rdzv_conf read_timeout: only timeout")));
}

TEST(Options, OfOthersThatCannotWorkSayWhatToDo) {
  EXPECT_THAT(option_error({"--virtual-local-rank", "x"}),
              HasSubstr("--virtual-local-rank does not work here; every rank sees all GPUs"));
  EXPECT_THAT(option_error({"--autotuning", "run", "x"}), HasSubstr("zerorun tune"));
  EXPECT_THAT(option_error({"--run-path", "x"}), HasSubstr("name the script as PROGRAM"));
  EXPECT_THAT(option_error({"--rdzv_backend=etcd", "x"}),
              HasSubstr("expected one of static, c10d"));
  EXPECT_THAT(option_error({"--rdzv_conf=timeout", "x"}), HasSubstr("expected KEY=VALUE"));
  EXPECT_THAT(option_error({"--rdzv_conf=timeout=soon", "x"}), HasSubstr("a number of seconds"));
  EXPECT_THAT(option_error({"--tee=9", "x"}), HasSubstr("--tee '9': expected 0 (none), 1"));
  EXPECT_THAT(option_error({"--redirects=a:1", "x"}), HasSubstr("--redirects 'a:1'"));
  EXPECT_THAT(option_error({"--local_ranks_filter=a", "x"}),
              HasSubstr("expected ranks, as in 0,2"));
  EXPECT_THAT(option_error({"--signals_to_handle=SIGUSR1", "x"}), HasSubstr("not at 'SIGUSR1'"));
}

TEST(Options, ElasticTrainingRestartsAsDeepSpeedDoes) {
  EXPECT_EQ(parse_options({"--elastic_training", "x"}).restarts.max_restarts, 100);
  EXPECT_EQ(parse_options({"--elastic_training", "--max_restarts=3", "x"}).restarts.max_restarts,
            3);
  const LaunchOptions options =
      parse_options({"--min_elastic_nodes=2", "--max_elastic_nodes=4", "x"});
  EXPECT_EQ(options.restarts.min_nodes, 2);
  EXPECT_EQ(options.restarts.max_nodes, 4);
}

TEST(Options, VariablesOfTorchrunStandForOptionsThatAreNotGiven) {
  const Environment environment = {{"PET_NNODES", "2"},
                                   {"PET_NPROC_PER_NODE", "4"},
                                   {"PET_STANDALONE", "1"},
                                   {"PET_MODULE", "0"}};
  const LaunchOptions options = parse_options({"--nproc_per_node=2", "x"}, environment);
  EXPECT_EQ(options.hosts.count, "2");
  EXPECT_EQ(options.request.count, "2");
  EXPECT_TRUE(options.hosts.standalone);
  EXPECT_FALSE(options.program.module);
}

TEST(Options, UnknownOptionsNameTheNearest) {
  EXPECT_THAT(option_error({"--num_gpu", "2", "train"}), HasSubstr("did you mean --num_gpus?"));
  EXPECT_THAT(option_error({"--dry-runn", "train"}), HasSubstr("did you mean --dry_run?"));
  EXPECT_THAT(option_error({"--localhost:0,2", "train"}),
              HasSubstr("did you mean '--include localhost:0,2'?"));
  EXPECT_THAT(option_error({"--quite_something_else", "train"}), HasSubstr("see zerorun --help"));
  EXPECT_THAT(option_error({"-z", "train"}), HasSubstr("unknown option -z"));
}

TEST(Options, BadValuesAreErrors) {
  EXPECT_THAT(option_error({"--master_port", "70000", "train"}), HasSubstr("--master_port"));
  EXPECT_THAT(option_error({"--master_port", "http", "train"}), HasSubstr("--master_port"));
  EXPECT_THAT(option_error({"--accelerator", "tpu", "train"}), HasSubstr("--accelerator"));
  for (const char* value : {"-1", "nan", "inf", "1e9", "1s"}) {
    EXPECT_THAT(option_error({"--grace_period", value, "train"}),
                HasSubstr("--grace_period: expected a number from 0 to 86400, got '"));
  }
  EXPECT_THAT(option_error({"--no_bind=yes", "train"}), HasSubstr("--no_bind takes no value"));
  EXPECT_THAT(option_error({"--num_gpus"}), HasSubstr("--num_gpus needs a value"));
  EXPECT_THAT(option_error({}), HasSubstr("no PROGRAM"));
  EXPECT_THAT(option_error({"--num_gpus", "2"}), HasSubstr("no PROGRAM"));
}

TEST(Options, HelpAndVersionNeedNoProgram) {
  EXPECT_TRUE(parse_options({"--help"}).help);
  EXPECT_TRUE(parse_options({"-h"}).help);
  EXPECT_TRUE(parse_options({"--version"}).version);
}

}  // namespace
}  // namespace zerorun
