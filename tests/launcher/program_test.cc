#include "launcher/program.h"

#include "tests/common.h"
#include "tests/error_of.h"
#include "tests/scratch.h"

namespace zerorun {
namespace {

using testing::Scratch;

// An installation with one bundled program, a PATH directory and a virtual environment.
class FindProgram : public ::testing::Test {
 protected:
  FindProgram() {
    scratch_.write("install/bin/zerorun", "", true);
    train_ = scratch_.write("install/libexec/zerorun/train", "", true);
    tool_ = scratch_.write("path/tool", "", true);
    scratch_.write("path/train", "", true);
    scratch_.write("path/data", "no program");
    python_ = scratch_.write("path/python3", "", true);
    script_ = scratch_.write("my/script.py", "parser.add_argument('--local_rank')");
    search_.launcher_directory = scratch_.path() / "install/bin";
    search_.path = "/nowhere:" + (scratch_.path() / "path").string();
  }

  std::string error_of(const ProgramRequest& request) {
    return testing::error_of<ConfigError>([&] { find_program(request, search_); });
  }

  Scratch scratch_;
  ProgramSearch search_;
  std::filesystem::path train_;
  std::filesystem::path tool_;
  std::filesystem::path python_;
  std::filesystem::path script_;
};

// Only the programs that come with zerorun use its CUDA.
TEST_F(FindProgram, BundledProgramsAreTold) {
  EXPECT_TRUE(is_bundled({.name = "train"}, search_));
  EXPECT_FALSE(is_bundled({.name = "train", .no_python = true}, search_));
  EXPECT_FALSE(is_bundled({.name = "train", .module = true}, search_));
  EXPECT_FALSE(is_bundled({.name = "tool"}, search_));
  EXPECT_FALSE(is_bundled({.name = script_.string()}, search_));
}

TEST_F(FindProgram, BundledProgramsComeBeforePath) {
  const Program program = find_program({.name = "train", .arguments = {"--num_gpus"}}, search_);
  EXPECT_THAT(rank_command(program, 1), ElementsAre(train_.string(), "--num_gpus"));
  EXPECT_FALSE(program.python);
}

TEST_F(FindProgram, FindsTheProgramsOfABuild) {
  scratch_.write("build/bin/zerorun", "", true);
  const auto mlp = scratch_.write("build/libexec/zerorun/mlp", "", true);
  scratch_.write("build/libexec/zerorun/notes", "");
  search_.launcher_directory = scratch_.path() / "build/bin";
  EXPECT_THAT(find_program({.name = "mlp"}, search_).command, ElementsAre(mlp.string()));
  EXPECT_THAT(bundled_programs(search_.launcher_directory), ElementsAre("mlp"));
}

TEST_F(FindProgram, ScriptsGetPythonAndLocalRank) {
  const Program program = find_program({.name = script_.string(), .arguments = {"a"}}, search_);
  EXPECT_TRUE(program.python);
  EXPECT_THAT(rank_command(program, 3),
              ElementsAre(python_.string(), "-u", script_.string(), "--local_rank=3", "a"));
}

TEST_F(FindProgram, NoLocalRankLeavesItOut) {
  const Program program =
      find_program({.name = script_.string(), .local_rank = LocalRank::never}, search_);
  EXPECT_THAT(rank_command(program, 3), ElementsAre(python_.string(), "-u", script_.string()));
}

TEST_F(FindProgram, AlwaysPassesLocalRankToScriptsThatDoNotMentionIt) {
  const std::string plain = scratch_.write("my/plain.py", "print(1)").string();
  EXPECT_THAT(rank_command(find_program({.name = plain}, search_), 0),
              ElementsAre(python_.string(), "-u", plain));
  EXPECT_THAT(
      rank_command(find_program({.name = plain, .local_rank = LocalRank::always}, search_), 1),
      ElementsAre(python_.string(), "-u", plain, "--local_rank=1"));
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

TEST_F(FindProgram, ModulesRunWithDashM) {
  const Program program =
      find_program({.name = "my.train", .module = true, .local_rank = LocalRank::always}, search_);
  EXPECT_THAT(rank_command(program, 0),
              ElementsAre(python_.string(), "-u", "-m", "my.train", "--local_rank=0"));
}

TEST_F(FindProgram, ActivatedEnvironmentComesFirst) {
  const auto python = scratch_.write("venv/bin/python", "", true);
  search_.virtual_env = (scratch_.path() / "venv").string();
  EXPECT_EQ(find_program({.name = "m", .module = true}, search_).command.front(), python.string());
}

TEST_F(FindProgram, AnEnvironmentWithZerorunInItComesBeforePath) {
  const auto python = scratch_.write("install/bin/python", "", true);
  EXPECT_EQ(find_program({.name = "m", .module = true}, search_).command.front(), python_.string());
  scratch_.write("install/pyvenv.cfg", "");
  EXPECT_EQ(find_program({.name = "m", .module = true}, search_).command.front(), python.string());
}

TEST_F(FindProgram, ThePythonOfAWheelComesBeforeAnActivatedEnvironment) {
  scratch_.write("venv/bin/python", "", true);
  search_.virtual_env = (scratch_.path() / "venv").string();
  search_.python = scratch_.write("wheel/bin/python", "", true).string();
  EXPECT_EQ(find_program({.name = "m", .module = true}, search_).command.front(), search_.python);
  search_.python = scratch_.write("wheel/notes", "").string();
  EXPECT_THAT(error_of({.name = "m", .module = true}),
              AllOf(HasSubstr("ZERORUN_PYTHON='" + search_.python), HasSubstr("an executable")));
}

TEST_F(FindProgram, WithoutPythonItSaysSo) {
  search_.path = "/nowhere";
  EXPECT_THAT(error_of({.name = "m", .module = true}), HasSubstr("no Python found"));
}

TEST_F(FindProgram, ExecutablesByPathOrInPath) {
  EXPECT_THAT(rank_command(find_program({.name = "tool", .arguments = {"-x"}}, search_), 0),
              ElementsAre(tool_.string(), "-x"));
  EXPECT_THAT(find_program({.name = tool_.string()}, search_).command, ElementsAre(tool_.string()));
}

TEST_F(FindProgram, NoPythonExecutesScriptsAndSkipsBundledPrograms) {
  const auto script = scratch_.write("my/run.py", "", true);
  const Program program = find_program({.name = script.string(), .no_python = true}, search_);
  EXPECT_THAT(rank_command(program, 0), ElementsAre(script.string()));
  EXPECT_THAT(find_program({.name = "train", .no_python = true}, search_).command,
              ElementsAre((scratch_.path() / "path/train").string()));
}

TEST_F(FindProgram, UnknownProgramsAreExplained) {
  EXPECT_THAT(error_of({.name = "trian"}), HasSubstr("did you mean 'train'?"));
  EXPECT_THAT(error_of({.name = "nothing_like_it"}), HasSubstr("bundled program (train)"));
  EXPECT_THAT(error_of({.name = "missing.py"}), HasSubstr("'missing.py' does not exist"));
  EXPECT_THAT(error_of({.name = "./missing"}), HasSubstr("'./missing' does not exist"));
  EXPECT_THAT(error_of({.name = "data"}), HasSubstr("unknown program 'data'"));
  EXPECT_THAT(error_of({.name = (scratch_.path() / "path/data").string()}),
              HasSubstr("not an executable file"));
  EXPECT_THAT(error_of({.name = scratch_.path().string()}), HasSubstr("not an executable file"));
  EXPECT_THAT(error_of({.name = ""}), HasSubstr("empty"));
}

TEST_F(FindProgram, ModuleAndNoPythonExcludeEachOther) {
  EXPECT_THAT(error_of({.name = "m", .module = true, .no_python = true}),
              HasSubstr("--module and --no_python"));
}

}  // namespace
}  // namespace zerorun
