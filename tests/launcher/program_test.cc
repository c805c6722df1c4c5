#include "launcher/program.h"

#include "tests/common.h"
#include "tests/error_of.h"
#include "tests/scratch.h"

namespace zerorun {
namespace {

// An installation with one bundled program, a PATH directory and a virtual environment.
class FindProgram : public ::testing::Test {
 protected:
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
  EXPECT_THAT(error_of(module),
              AllOf(HasSubstr("ZERORUN_PYTHON='" + search_.python), HasSubstr("an executable")));
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

}  // namespace
}  // namespace zerorun
