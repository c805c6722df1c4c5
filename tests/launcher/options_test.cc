#include "launcher/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "zerorun/error.h"

namespace zerorun {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string error_of(const std::vector<std::string>& arguments) {
  try {
    parse_options(arguments);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Options, DefaultsAreAFreePortAndAllDevices) {
  const LaunchOptions options = parse_options({"train"});
  EXPECT_EQ(options.program.name, "train");
  EXPECT_THAT(options.program.arguments, IsEmpty());
  EXPECT_EQ(options.request.count, "");
  EXPECT_EQ(options.request.accelerator, Accelerator::automatic);
  EXPECT_EQ(options.master_addr, "127.0.0.1");
  EXPECT_EQ(options.master_port, 0);
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
  EXPECT_EQ(options.master_addr, "::1");
  EXPECT_EQ(options.master_port, 29501);
  EXPECT_EQ(options.log_dir, "logs");
  EXPECT_EQ(options.grace_period, std::chrono::milliseconds(500));
  EXPECT_TRUE(options.no_bind);
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
  EXPECT_TRUE(options.no_bind);
  EXPECT_EQ(options.program.name, "train");
  EXPECT_THAT(options.program.arguments, ElementsAre("a"));
}

TEST(Options, TheLastOneWins) {
  EXPECT_EQ(parse_options({"--num_gpus", "2", "--num-gpus", "3", "train"}).request.count, "3");
}

TEST(Options, AnEmptyFilterIsNoneAndOtherEmptyValuesAreErrors) {
  EXPECT_EQ(parse_options({"--include=", "--exclude", "", "train"}).request.include, "");
  EXPECT_EQ(parse_options({"--num_gpus", "2", "-i", "", "train"}).program.name, "train");
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--num_gpus=", "train"},
        {"--log_dir", "", "train"},
        {"--master_addr", "", "train"},
        {"--grace_period=", "train"}}) {
    EXPECT_THAT(error_of(arguments), HasSubstr(": the value is empty; give one, or leave"));
  }
}

TEST(Options, OneHostMayBeSpelledOut) {
  const LaunchOptions options =
      parse_options({"--nnodes", "1", "--node_rank=0", "--standalone", "train"});
  EXPECT_EQ(options.program.name, "train");
  EXPECT_EQ(parse_options({"--nnodes=1:1", "train"}).program.name, "train");
}

TEST(Options, SeveralHostsAreNotSupportedYet) {
  EXPECT_THAT(error_of({"--nnodes", "2", "train"}), HasSubstr("several hosts are not supported"));
  EXPECT_THAT(error_of({"--node-rank=1", "train"}), HasSubstr("several hosts are not supported"));
  EXPECT_THAT(error_of({"--hostfile", "hosts", "train"}),
              HasSubstr("--hostfile is not supported yet"));
  EXPECT_THAT(error_of({"-H", "hosts", "train"}), HasSubstr("-H is not supported yet"));
  EXPECT_THAT(error_of({"--rdzv-endpoint=a:1", "train"}),
              HasSubstr("--rdzv-endpoint is not supported yet; use --master_addr"));
}

TEST(Options, UnknownOptionsNameTheNearest) {
  EXPECT_THAT(error_of({"--num_gpu", "2", "train"}), HasSubstr("did you mean --num_gpus?"));
  EXPECT_THAT(error_of({"--dry-runn", "train"}), HasSubstr("did you mean --dry_run?"));
  EXPECT_THAT(error_of({"--localhost:0,2", "train"}),
              HasSubstr("did you mean '--include localhost:0,2'?"));
  EXPECT_THAT(error_of({"--quite_something_else", "train"}), HasSubstr("see zerorun --help"));
  EXPECT_THAT(error_of({"-z", "train"}), HasSubstr("unknown option -z"));
}

TEST(Options, BadValuesAreErrors) {
  EXPECT_THAT(error_of({"--master_port", "70000", "train"}), HasSubstr("--master_port"));
  EXPECT_THAT(error_of({"--master_port", "http", "train"}), HasSubstr("--master_port"));
  EXPECT_THAT(error_of({"--accelerator", "tpu", "train"}), HasSubstr("--accelerator"));
  for (const char* value : {"-1", "nan", "inf", "1e9", "1s"}) {
    EXPECT_THAT(error_of({"--grace_period", value, "train"}),
                HasSubstr("--grace_period: expected a number from 0 to 86400, got '"));
  }
  EXPECT_THAT(error_of({"--no_bind=yes", "train"}), HasSubstr("--no_bind takes no value"));
  EXPECT_THAT(error_of({"--num_gpus"}), HasSubstr("--num_gpus needs a value"));
  EXPECT_THAT(error_of({}), HasSubstr("no PROGRAM"));
  EXPECT_THAT(error_of({"--num_gpus", "2"}), HasSubstr("no PROGRAM"));
}

TEST(Options, HelpAndVersionNeedNoProgram) {
  EXPECT_TRUE(parse_options({"--help"}).help);
  EXPECT_TRUE(parse_options({"-h"}).help);
  EXPECT_TRUE(parse_options({"--version"}).version);
}

TEST(Options, HelpNamesEveryOption) {
  const std::string help = help_text();
  for (const char* name :
       {"--num_gpus", "--nproc_per_node", "--num_accelerators", "--include", "--exclude",
        "--accelerator", "--master_addr", "--master_port", "--module", "--no_python",
        "--no_local_rank", "--log_dir", "--dry_run", "--no_bind", "--grace_period", "--version"}) {
    EXPECT_THAT(help, HasSubstr(name));
  }
  EXPECT_THAT(help, HasSubstr("or -1"));
  EXPECT_THAT(help, HasSubstr("\"\" is no filter"));
}

}  // namespace
}  // namespace zerorun
