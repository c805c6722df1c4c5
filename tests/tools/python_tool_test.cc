#include "tests/common.h"
#include "tests/scratch.h"
#include "tools/commands.h"
#include "zerorun/error.h"

namespace zerorun {
namespace {

namespace fs = std::filesystem;

// A machine with one Python in PATH, and a zerorun in a folder of its own.
class PythonTool : public ::testing::Test {
 protected:
  PythonTool() {
    python_ = scratch_.write("usr/bin/python3", "", true);
    scratch_.write("own/bin/zerorun", "", true);
    search_.launcher_directory = scratch_.path() / "own/bin";
    search_.path = (scratch_.path() / "usr/bin").string();
  }

  PythonCommand command() const {
    return python_tool_command({"ckpt", "import", "a", "b"}, search_, environment_).value();
  }

  testing::Scratch scratch_;
  ProgramSearch search_;
  Environment environment_;
  fs::path python_;
};

TEST_F(PythonTool, RunsWithThePythonThatRanksWouldRunWhereThatHasThePackage) {
  scratch_.write("usr/lib/python3.11/site-packages/zerorun/__init__.py", "");
  scratch_.write("own/python/zerorun/__init__.py", "");
  EXPECT_THAT(command().words,
              ElementsAre(python_.string(), "-u", "-m", "zerorun", "ckpt", "import", "a", "b"));
  EXPECT_EQ(command().environment, environment_);
}

TEST_F(PythonTool, RunsInABuildTreeWithThePythonItWasBuiltFor) {
  scratch_.write("own/python/zerorun/__init__.py", "");
  const fs::path python = scratch_.write("venv/bin/python", "", true);
  fs::create_symlink(python, scratch_.path() / "own/python/interpreter");
  environment_["PYTHONPATH"] = "/given";
  EXPECT_EQ(command().words.front(), python.string());
  const std::string folder = fs::canonical(scratch_.path() / "own/python").string();
  EXPECT_EQ(command().environment.at("PYTHONPATH"), folder + ":/given");
}

TEST_F(PythonTool, RunsInABuildTreeWithTheActiveEnvironmentOfThePythonItWasBuiltFor) {
  scratch_.write("own/python/zerorun/__init__.py", "");
  fs::create_directories(scratch_.path() / "venv/bin");
  fs::create_directories(scratch_.path() / "active/bin");
  for (const char* name : {"venv/bin/python", "active/bin/python"}) {
    fs::create_symlink(python_, scratch_.path() / name);
  }
  fs::create_symlink(scratch_.path() / "venv/bin/python",
                     scratch_.path() / "own/python/interpreter");
  search_.virtual_env = (scratch_.path() / "active").string();
  EXPECT_EQ(command().words.front(), (scratch_.path() / "active/bin/python").string());
  const std::string folder = fs::canonical(scratch_.path() / "own/python").string();
  EXPECT_EQ(command().environment.at("PYTHONPATH"), folder);
  search_.virtual_env.clear();  // the installation itself lacks the packages of its environments
  EXPECT_EQ(command().words.front(), (scratch_.path() / "venv/bin/python").string());
}

TEST_F(PythonTool, RunsWithThePythonThatZerorunIsInstalledBeside) {
  scratch_.write("own/lib/python3.11/site-packages/zerorun/__init__.py", "");
  const fs::path python = scratch_.write("own/bin/python3", "", true);
  EXPECT_EQ(command().words.front(), python.string());
}

TEST_F(PythonTool, WithoutThePackageItSaysWhichPythonLacksIt) {
  EXPECT_THAT([&] { command(); }, ThrowsMessage<ConfigError>(
                                      HasSubstr("zerorun ckpt import is written in Python, but " +
                                                python_.string() + " does not have the package")));
}

TEST_F(PythonTool, OtherWordsAreNotItsAffair) {
  EXPECT_FALSE(python_tool_command({"ckpt", "ls", "a"}, search_, environment_));
  EXPECT_FALSE(python_tool_command({"ckpt"}, search_, environment_));
}

}  // namespace
}  // namespace zerorun
