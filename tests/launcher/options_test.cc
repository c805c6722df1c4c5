#include "launcher/options.h"

#include "tests/launcher/cluster_choice.h"

namespace zerorun::testing {
namespace {

LaunchOptions parsed(const std::string& text) { return parse_options(words_of(text)); }

TEST(Options, DefaultsAreAFreePortAndAllDevices) {
  const LaunchOptions options = parsed("train");
  EXPECT_EQ(options.request.count, "");
  EXPECT_EQ(options.request.accelerator, Accelerator::automatic);
  EXPECT_EQ(options.hosts.master_port, 0);
  EXPECT_EQ(options.hosts.hostfile, std::nullopt);
}

TEST(Options, EverySpellingOfTheRankCount) {
  for (const std::string name : {"--num_gpus", "--num-gpus", "--nproc_per_node", "--nproc-per-node",
                                 "--num_accelerators", "--num-accelerators"}) {
    EXPECT_EQ(parsed(name + " 2 train").request.count, "2") << name;
    EXPECT_EQ(parsed(name + "=2 train").request.count, "2") << name;
  }
}

TEST(Options, LocalRankIsAlwaysAutomaticOrNever) {
  for (const auto& [options, expected] :
       std::vector<std::pair<std::string, LocalRank>>{{"", LocalRank::automatic},
                                                      {"--local_rank auto", LocalRank::automatic},
                                                      {"--local_rank=always", LocalRank::always},
                                                      {"--local-rank never", LocalRank::never},
                                                      {"--no_local_rank", LocalRank::never},
                                                      {"--use_env", LocalRank::never}}) {
    EXPECT_EQ(parsed(options + " x.py").program.local_rank, expected) << options;
  }
}

TEST(Options, TheLastOneWinsAndTheProgramsArgumentsAreUntouched) {
  const LaunchOptions options =
      parse_options({"--num_gpus", "1", "--num-gpus", "2", "--", "train", "--num_gpus", "3",
                     "--num-gpus=4", "--", "-x", "--help", "", "--no_such_option"});
  EXPECT_EQ(options.request.count, "2");
  EXPECT_FALSE(options.help);
  EXPECT_EQ(options.program.name, "train");
  EXPECT_THAT(options.program.arguments, ElementsAre("--num_gpus", "3", "--num-gpus=4", "--", "-x",
                                                     "--help", "", "--no_such_option"));
}

TEST(Options, ShortOptionsTakeAttachedValues) {
  EXPECT_EQ(parsed("-ilocalhost:1 train").request.include, "localhost:1");
  EXPECT_EQ(parsed("-e=localhost:1 train").request.exclude, "localhost:1");
}

TEST(Options, AnEmptyFilterOrHostfileIsNoneAndOtherEmptyValuesAreErrors) {
  const LaunchOptions options =
      parse_options({"--include=", "--exclude", "", "--hostfile", "", "train"});
  EXPECT_EQ(options.request.include, "");
  EXPECT_EQ(options.hosts.hostfile, "");
  EXPECT_EQ(parsed("--hostfile= train").hosts.hostfile, "");
  EXPECT_ERROR(parse_options({"--log_dir", "", "train"}),
               ": the value is empty; give one, or leave");
}

TEST(Options, OfHostsAreRead) {
  std::vector<std::string> arguments = words_of(
      "--node-rank 2 --no_ssh_check --export A --export=B --venv_script=/v --local_addr=h "
      "--comm_timeout=1.5 --bind_core_list=0-3,8 --save_pid --launcher_args");
  arguments.insert(arguments.end(), {"-v  -o 'A b' \"\"", "x"});
  const LaunchOptions options = parse_options(arguments);
  EXPECT_EQ(options.hosts.node_rank, 2);
  EXPECT_THAT(options.remote.arguments, ElementsAre("-v", "-o", "A b", ""));
  EXPECT_FALSE(options.remote.check);
  EXPECT_THAT(options.remote.exports, ElementsAre("A", "B"));
  EXPECT_EQ(options.remote.venv_script, "/v");
  EXPECT_EQ(options.hosts.local_addr, "h");
  EXPECT_EQ(options.request.comm_timeout_s, 1.5);
  EXPECT_EQ(options.cpus.list, "0-3,8");
  EXPECT_TRUE(options.save_pid);
}

// Every option of torchrun, as its help lists them.
TEST(Options, OfTorchrunAreRead) {
  const LaunchOptions options = parsed(
      "--nnodes=1:1 --nproc-per-node=gpu --rdzv-backend=c10d --rdzv-endpoint=localhost:0 "
      "--rdzv-id=job7 --rdzv-conf=timeout=60,read_timeout=5 --max-restarts=0 "
      "--monitor-interval=5 --start-method=spawn --role=trainer --log-dir=logs -r 3 "
      "-t 0:1,1:2 --local-ranks-filter=0,1 --node-rank=0 --master-addr=h --master-port=1 "
      "--signals-to-handle=SIGTERM,SIGINT --shutdown-timeout=3 --numa-binding=node --use-env "
      "-m pkg.mod --lr=1");
  EXPECT_EQ(options.hosts.join_timeout_s, 60);
  EXPECT_EQ(options.output.redirects, "3");
  EXPECT_EQ(options.output.tee, "0:1,1:2");
  EXPECT_THAT(options.output.shown_ranks, ElementsAre(0, 1));
  EXPECT_EQ(options.grace_period, 3s);
  EXPECT_TRUE(options.program.module);
  EXPECT_EQ(options.program.name, "pkg.mod");
  EXPECT_THAT(options.notes,
              ::testing::UnorderedElementsAre(
                  HasSubstr("--monitor_interval has no meaning here: the launcher notices the end"),
                  HasSubstr("--start_method has no meaning here: every rank is a separate program"),
                  HasSubstr("--numa_binding has no meaning here: ranks are bound"),
                  HasSubstr("--rdzv_conf read_timeout: only timeout")));
}

TEST(Options, ElasticTrainingRestartsAsDeepSpeedDoes) {
  EXPECT_EQ(parsed("--elastic_training x").restarts.max_restarts, 100);
  EXPECT_EQ(parsed("--elastic_training --max_restarts=3 x").restarts.max_restarts, 3);
}

TEST(Options, VariablesOfTorchrunStandForOptionsThatAreNotGiven) {
  const Environment environment =
      variables("PET_NNODES=2 PET_NPROC_PER_NODE=4 PET_STANDALONE=1 PET_MODULE=0");
  const LaunchOptions options = parse_options({"--nproc_per_node=2", "x"}, environment);
  EXPECT_EQ(options.hosts.count, "2");
  EXPECT_EQ(options.request.count, "2");
  EXPECT_TRUE(options.hosts.standalone);
  EXPECT_FALSE(options.program.module);
}

TEST(Options, WhatCannotBeMeantSaysWhatToDo) {
  const std::string no_grace = "--grace_period: expected a number from 0 to 86400, got '";
  for (const auto& [words, text] : std::vector<std::pair<std::string, std::string>>{
           {"--num_gpu 2 train", "did you mean --num_gpus?"},
           {"--dry-runn train", "did you mean --dry_run?"},
           {"--localhost:0,2 train", "did you mean '--include localhost:0,2'?"},
           {"--quite_something_else train", "see zerorun --help"},
           {"-z train", "unknown option -z"},
           {"--master_port 70000 train", "--master_port"},
           {"--master_port http train", "--master_port"},
           {"--accelerator tpu train", "--accelerator"},
           {"--local_rank=1 train", "--local_rank"},
           {"--grace_period -1 train", no_grace},
           {"--grace_period nan train", no_grace},
           {"--grace_period 1e9 train", no_grace},
           {"--grace_period 1s train", no_grace},
           {"--grace_period= train", ": the value is empty; give one, or leave"},
           {"--no_bind=yes train", "--no_bind takes no value"},
           {"--num_gpus", "--num_gpus needs a value"},
           {"", "no PROGRAM"},
           {"--num_gpus 2", "no PROGRAM"},
           {"--launcher_args 'a x", "a quote is not closed"},
           {"--launcher=rsh x", "expected one of ssh, pdsh"},
           {"--virtual-local-rank x",
            "--virtual-local-rank does not work here; every rank sees all GPUs"},
           {"--autotuning run x", "zerorun tune"},
           {"--run-path x", "name the script as PROGRAM"},
           {"--rdzv_backend=etcd x", "expected one of static, c10d"},
           {"--rdzv_conf=timeout x", "expected KEY=VALUE"},
           {"--rdzv_conf=timeout=soon x", "a number of seconds"},
           {"--tee=9 x", "--tee '9': expected 0 (none), 1"},
           {"--redirects=a:1 x", "--redirects 'a:1'"},
           {"--local_ranks_filter=a x", "expected ranks, as in 0,2"},
           {"--signals_to_handle=SIGUSR1 x", "not at 'SIGUSR1'"}}) {
    EXPECT_ERROR(parsed(words), text) << words;
  }
}

}  // namespace
}  // namespace zerorun::testing
