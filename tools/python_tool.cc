#include "tools/python_tool.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "core/check.h"
#include "launcher/program.h"

namespace zerorun {

namespace {

// The words before a tool's own arguments, and the module that runs it.
struct PythonTool {
  std::vector<std::string> words;
  std::string module;
  bool keeps_words = false;  // the module reads them too
};

const std::vector<PythonTool>& python_tools() {
  static const std::vector<PythonTool> tools = {
      {{"report"}, "zerorun.report"},
      {{"monitor"}, "zerorun.monitor"},
      {{"ckpt", "import"}, "zerorun", true},
      {{"ckpt", "export"}, "zerorun", true},
  };
  return tools;
}

}  // namespace

std::optional<std::vector<std::string>> python_tool_command(
    const std::vector<std::string>& arguments) {
  for (const PythonTool& tool : python_tools()) {
    const auto end =
        arguments.begin() + static_cast<ptrdiff_t>(std::min(tool.words.size(), arguments.size()));
    if (!std::equal(arguments.begin(), end, tool.words.begin(), tool.words.end())) continue;
    const Program program =
        find_program({.name = tool.module, .module = true}, ProgramSearch::here());
    std::vector<std::string> command = program.command;
    command.insert(command.end(), tool.keeps_words ? arguments.begin() : end, arguments.end());
    return command;
  }
  return std::nullopt;
}

void become(const std::vector<std::string>& command) {
  std::vector<char*> words;
  words.reserve(command.size() + 1);
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  ::execv(words.front(), words.data());
  fail<IoError>("cannot execute {}: {}", command.front(), std::strerror(errno));
}

}  // namespace zerorun
