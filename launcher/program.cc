#include "launcher/program.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <system_error>

#include "config/checks/suggest.h"
#include "core/check.h"
#include "launcher/environment.h"

namespace zerorun {

namespace {

namespace fs = std::filesystem;

bool is_executable(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) && access(path.c_str(), X_OK) == 0;
}

// Beside the launcher's folder, in a build as in an installation.
constexpr std::string_view kBundled = "../libexec/zerorun";

std::optional<fs::path> find_bundled(const std::string& name, const fs::path& launcher_directory) {
  const fs::path program = launcher_directory / kBundled / name;
  if (!is_executable(program)) return std::nullopt;
  return fs::weakly_canonical(program);
}

// Looks at what ZERORUN_PYTHON names first, then at an activated environment, then at the one
// zerorun is installed in, then at PATH.
fs::path find_python(const ProgramSearch& search) {
  if (!search.python.empty()) {
    if (is_executable(search.python)) return search.python;
    fail<ConfigError>("ZERORUN_PYTHON='{}': expected an executable file", search.python);
  }
  if (!search.virtual_env.empty()) {
    fs::path python = fs::path(search.virtual_env) / "bin" / "python";
    if (is_executable(python)) return python;
  }
  std::error_code error;
  if (fs::exists(search.launcher_directory / ".." / "pyvenv.cfg", error)) {
    fs::path python = search.launcher_directory / "python";
    if (is_executable(python)) return python;
  }
  for (const char* name : {"python3", "python"}) {
    if (const auto python = find_in_path(name, search.path)) return *python;
  }
  fail<ConfigError>(
      "no Python found: neither $VIRTUAL_ENV/bin/python nor python3 in PATH; activate an "
      "environment, or use --no_python to run a program that is not Python");
}

[[noreturn]] void fail_unknown(const ProgramRequest& request, const ProgramSearch& search) {
  const std::string& name = request.name;
  const std::vector<std::string> bundled = bundled_programs(search.launcher_directory);
  std::vector<std::string> known = bundled;
  known.insert(known.end(), request.commands.begin(), request.commands.end());
  const std::string nearest = nearest_name(name, known);
  std::error_code error;
  std::string hint;
  if (!nearest.empty()) {
    hint = fmt::format("; did you mean '{}'?", nearest);
  } else if (fs::is_regular_file(name, error)) {
    hint = fmt::format("; for the file in this directory write './{}'", name);
  }
  fail<ConfigError>(
      "unknown program '{}': neither a bundled program ({}), nor a .py file, nor an executable in "
      "PATH{}",
      name, bundled.empty() ? "none is installed" : fmt::format("{}", fmt::join(bundled, ", ")),
      hint);
}

// A program named by its path.
fs::path check_executable(const std::string& name) {
  std::error_code error;
  if (!fs::exists(name, error)) fail<ConfigError>("program '{}' does not exist", name);
  if (!is_executable(name)) {
    fail<ConfigError>("'{}' is not an executable file; Python programs are named *.py", name);
  }
  return name;
}

fs::path find_executable(const ProgramRequest& request, const ProgramSearch& search) {
  if (request.name.find('/') != std::string::npos) return check_executable(request.name);
  if (const auto found = find_in_path(request.name, search.path)) return *found;
  fail_unknown(request, search);
}

std::string local_rank_for(const ProgramRequest& request) {
  if (request.local_rank == LocalRank::never) return {};
  const std::string source = program_source(request.name, request.module, fs::current_path());
  const std::string_view option = local_rank_option(source);
  if (option.empty() && request.local_rank == LocalRank::always) return "--local_rank";
  return std::string(option);
}

}  // namespace

std::optional<fs::path> find_in_path(const std::string& name, std::string_view path) {
  while (!path.empty()) {
    const size_t end = std::min(path.find(':'), path.size());
    // An empty entry means the working directory.
    const fs::path directory = end == 0 ? fs::path(".") : fs::path(path.substr(0, end));
    if (is_executable(directory / name)) return directory / name;
    path.remove_prefix(std::min(end + 1, path.size()));
  }
  return std::nullopt;
}

ProgramSearch ProgramSearch::here() {
  const Environment environment = inherited_environment();
  std::error_code error;
  ProgramSearch search;
  search.launcher_directory = fs::read_symlink("/proc/self/exe", error).parent_path();
  search.path = find_variable(environment, "PATH").value_or("/usr/local/bin:/usr/bin:/bin");
  search.python = find_variable(environment, "ZERORUN_PYTHON").value_or("");
  search.virtual_env = find_variable(environment, "VIRTUAL_ENV").value_or("");
  return search;
}

std::vector<std::string> bundled_programs(const fs::path& launcher_directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(launcher_directory / kBundled, error)) {
    const std::string name = entry.path().filename().string();
    if (find_bundled(name, launcher_directory)) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool is_bundled(const ProgramRequest& request, const ProgramSearch& search) {
  return !request.module && !request.no_python &&
         find_bundled(request.name, search.launcher_directory).has_value();
}

Program find_program(const ProgramRequest& request, const ProgramSearch& search) {
  if (request.module && request.no_python) {
    fail<ConfigError>("--module and --no_python exclude each other: a module needs Python");
  }
  if (request.name.empty()) fail<ConfigError>("the program's name is empty");
  Program program;
  program.arguments = request.arguments;
  const bool script = !request.no_python && request.name.ends_with(".py");
  if (request.module || script) {
    program.command = {find_python(search).string(), "-u"};
    if (request.module) program.command.emplace_back("-m");
    std::error_code error;
    if (!request.module && !fs::exists(request.name, error)) {
      fail<ConfigError>("program '{}' does not exist (working directory: {})", request.name,
                        fs::current_path(error).string());
    }
    program.command.push_back(request.name);
    program.python = true;
    program.local_rank = local_rank_for(request);
    return program;
  }
  const auto bundled =
      request.no_python ? std::nullopt : find_bundled(request.name, search.launcher_directory);
  program.command = {(bundled ? *bundled : find_executable(request, search)).string()};
  return program;
}

std::vector<std::string> rank_command(const Program& program, int local_rank) {
  std::vector<std::string> command = program.command;
  if (!program.local_rank.empty()) {
    command.push_back(fmt::format("{}={}", program.local_rank, local_rank));
  }
  command.insert(command.end(), program.arguments.begin(), program.arguments.end());
  return command;
}

}  // namespace zerorun
