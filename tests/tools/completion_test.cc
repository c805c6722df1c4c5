#include <CLI/CLI.hpp>

#include "tests/common.h"
#include "tests/scratch.h"
#include "tools/commands.h"
#include "train/run/options.h"
#include "zerorun/error.h"

namespace zerorun {
namespace {

std::vector<std::string> words_for(const std::vector<std::string>& words) {
  std::vector<std::string> found;
  for (const Candidate& candidate : complete(words)) found.push_back(candidate.word);
  return found;
}

TEST(Completion, TheFirstWordIsAToolOrAProgram) {
  EXPECT_THAT(words_for({""}),
              IsSupersetOf({"plan", "config", "ckpt", "report", "monitor", "help"}));
  EXPECT_THAT(words_for({"pl"}), ElementsAre("plan"));
  EXPECT_THAT(words_for({"my_script"}), IsEmpty());  // a file, which the shell knows
}

TEST(Completion, ToolsAreOnlyTheFirstWord) {
  EXPECT_THAT(words_for({"--num_gpus", "2", "pl"}), IsEmpty());
}

TEST(Completion, ToolsHaveToolsAndOptions) {
  EXPECT_THAT(words_for({"ckpt", "p"}), ElementsAre("prune"));
  EXPECT_THAT(words_for({"ckpt", "e"}), ElementsAre("export"));
  EXPECT_THAT(words_for({"ckpt", "prune", "--keep"}), ElementsAre("--keep_last", "--keep_every"));
  EXPECT_THAT(words_for({"ckpt", "prune", "out/"}), IsEmpty());
  EXPECT_THAT(words_for({"completion", ""}), ElementsAre("bash", "zsh", "fish"));
}

TEST(Completion, ToolsInPythonHaveTheirOptions) {
  EXPECT_THAT(words_for({"report", "m.jsonl", "--"}),
              ElementsAre("--help", "--output", "--trace", "--serve", "--port"));
  EXPECT_THAT(words_for({"ckpt", "export", "--to", ""}), ElementsAre("safetensors", "bin", "dcp"));
  EXPECT_THAT(words_for({"report", "--output", ""}), IsEmpty());  // files
}

TEST(Completion, LauncherOptionsStandBeforeTheProgram) {
  EXPECT_THAT(words_for({"--num_"}),
              ElementsAre("--num_gpus", "--num_accelerators", "--num_nodes"));
  EXPECT_THAT(words_for({"--num-n"}), ElementsAre("--num_nodes"));
  EXPECT_THAT(words_for({"script.py", "--num_"}), IsEmpty());
}

TEST(Completion, TrainHasItsOwnOptions) {
  EXPECT_THAT(words_for({"--num_gpus", "2", "train", "--save"}),
              ElementsAre("--save", "--save_every", "--save_async"));
  EXPECT_THAT(words_for({"train", "--num_gpus"}), IsEmpty());
}

TEST(Completion, ValuesThatAreChoices) {
  EXPECT_THAT(words_for({"--accelerator", ""}), ElementsAre("auto", "cpu", "cuda"));
  EXPECT_THAT(words_for({"--accelerator=c"}),
              ElementsAre("--accelerator=cpu", "--accelerator=cuda"));
  EXPECT_THAT(words_for({"train", "--dtype", "f"}), ElementsAre("fp32", "fp16"));
  EXPECT_THAT(words_for({"train", "--model", ""}), IsEmpty());  // NAME|FILE are no choices
  EXPECT_THAT(words_for({"--hostfile", ""}), IsEmpty());
}

TEST(Completion, KnowsEveryOptionOfTrain) {
  train::TrainOptions values;
  CLI::App train;
  train::define_options(train, values);
  std::set<std::string> expected;
  for (const CLI::Option* option : train.get_options()) {
    for (const std::string& name : option->get_lnames()) expected.insert("--" + name);
  }
  const std::vector<std::string> found = words_for({"train", "-"});
  EXPECT_EQ(std::set<std::string>(found.begin(), found.end()), expected);
}

TEST(Completion, OptionsThatTheHelpHidesAreHiddenHereToo) {
  EXPECT_THAT(words_for({"--"}), Not(Contains("--start_method")));
}

TEST(Completion, HelpHasTopics) {
  EXPECT_THAT(words_for({"help", "e"}), ElementsAre("explain", "env", "environment"));
  EXPECT_THAT(words_for({"help", "config", "s"}), ElementsAre("show", "schema"));
}

TEST(Completion, LinesHaveAWordAndItsMeaning) {
  EXPECT_EQ(candidates_text({"config", "sc"}),
            "schema\tPrints the JSON Schema of a configuration, for editors\n");
  EXPECT_EQ(candidates_text({"--hostfile", ""}), "");
}

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

  Scratch scratch_;
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
