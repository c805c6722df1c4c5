#include <CLI/CLI.hpp>

#include "tests/common.h"
#include "tools/commands.h"
#include "train/run/options.h"

namespace zerorun {
namespace {

std::vector<std::string> words_for(const std::vector<std::string>& words) {
  std::vector<std::string> found;
  for (const Candidate& candidate : complete(words)) found.push_back(candidate.word);
  return found;
}

TEST(Completion, IsOfToolsThenOfOptionsThenOfValues) {
  using Words = std::vector<std::string>;
  EXPECT_THAT(words_for({""}),
              IsSupersetOf({"plan", "config", "ckpt", "report", "monitor", "help"}));
  EXPECT_THAT(words_for({"--"}), Not(Contains("--start_method")));  // the help hides it, too
  for (const auto& [words, expected] : std::vector<std::pair<Words, Words>>{
           {{"pl"}, {"plan"}},
           {{"my_script"}, {}},              // a file, which the shell knows
           {{"--num_gpus", "2", "pl"}, {}},  // tools are only the first word
           {{"ckpt", "p"}, {"prune"}},
           {{"ckpt", "e"}, {"export"}},
           {{"ckpt", "prune", "--keep"}, {"--keep_last", "--keep_every"}},
           {{"ckpt", "prune", "out/"}, {}},
           {{"completion", ""}, {"bash", "zsh", "fish"}},
           {{"help", "e"}, {"explain", "env", "environment"}},
           {{"help", "config", "s"}, {"show", "schema"}},
           // Tools in Python.
           {{"report", "m.jsonl", "--"}, {"--help", "--output", "--trace", "--serve", "--port"}},
           {{"ckpt", "export", "--to", ""}, {"safetensors", "bin", "dcp"}},
           {{"report", "--output", ""}, {}},
           // Options of the launcher stand before the program, whose own follow it.
           {{"--num_"}, {"--num_gpus", "--num_accelerators", "--num_nodes"}},
           {{"--num-n"}, {"--num_nodes"}},
           {{"script.py", "--num_"}, {}},
           {{"--num_gpus", "2", "train", "--save"}, {"--save", "--save_every", "--save_async"}},
           {{"train", "--num_gpus"}, {}},
           // Values that are choices.
           {{"--accelerator", ""}, {"auto", "cpu", "cuda"}},
           {{"--accelerator=c"}, {"--accelerator=cpu", "--accelerator=cuda"}},
           {{"train", "--dtype", "f"}, {"fp32", "fp16"}},
           {{"train", "--model", ""}, {}},
           {{"--hostfile", ""}, {}}}) {
    EXPECT_EQ(words_for(words), expected) << fmt::format("{}", fmt::join(words, " "));
  }
  EXPECT_EQ(candidates_text({"config", "sc"}),
            "schema\tPrints the JSON Schema of a configuration, for editors\n");
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

namespace fs = std::filesystem;

// A machine with one Python in PATH, and a zerorun in a folder of its own.
struct PythonTool : ::testing::Test {
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

TEST_F(PythonTool, RunsInABuildTreeWithThePythonItWasBuiltForOrItsActiveEnvironment) {
  scratch_.write("own/python/zerorun/__init__.py", "");
  fs::create_directories(scratch_.path() / "venv/bin");
  fs::create_directories(scratch_.path() / "active/bin");
  for (const char* name : {"venv/bin/python", "active/bin/python"}) {
    fs::create_symlink(python_, scratch_.path() / name);
  }
  fs::create_symlink(scratch_.path() / "venv/bin/python",
                     scratch_.path() / "own/python/interpreter");
  search_.virtual_env = scratch_.path("active");
  EXPECT_EQ(command().words.front(), scratch_.path("active/bin/python"));
  const std::string folder = fs::canonical(scratch_.path() / "own/python").string();
  EXPECT_EQ(command().environment.at("PYTHONPATH"), folder);
  environment_["PYTHONPATH"] = "/given";
  search_.virtual_env.clear();  // the installation itself lacks the packages of its environments
  EXPECT_EQ(command().words.front(), scratch_.path("venv/bin/python"));
  EXPECT_EQ(command().environment.at("PYTHONPATH"), folder + ":/given");
}

TEST_F(PythonTool, RunsWithThePythonThatZerorunIsInstalledBeside) {
  scratch_.write("own/lib/python3.11/site-packages/zerorun/__init__.py", "");
  const fs::path python = scratch_.write("own/bin/python3", "", true);
  EXPECT_EQ(command().words.front(), python.string());
}

TEST_F(PythonTool, WithoutThePackageItSaysWhichPythonLacksIt) {
  EXPECT_ERROR_OF(ConfigError, command(),
                  "zerorun ckpt import is written in Python, but " + python_.string() +
                      " does not have the package");
  EXPECT_FALSE(python_tool_command({"ckpt", "ls", "a"}, search_, environment_));  // not in Python
  EXPECT_FALSE(python_tool_command({"ckpt"}, search_, environment_));
}

}  // namespace
}  // namespace zerorun
