#include "launcher/program.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>

#include "config/checks/suggest.h"
#include "core/check.h"
#include "launcher/words.h"
#include "os/text_file.h"

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
  const std::string source = program_source(request.name, request.module, working_directory());
  const std::string_view option = local_rank_option(source);
  if (option.empty() && request.local_rank == LocalRank::always) return "--local_rank";
  return std::string(option);
}

constexpr uint64_t kMaxSource = uint64_t{16} << 20;

// True if the text after an attribute's name assigns to it.
bool is_assignment(std::string_view rest) {
  rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  return rest.starts_with('=') && !rest.starts_with("==");
}

// True if the program reads args.local_rank, which its parser must have got: a field of a
// dataclass, or an option that another file declares.
bool reads_attribute(std::string_view source) {
  constexpr std::string_view kAttribute = ".local_rank";
  bool is_read = false;
  for (size_t at = source.find(kAttribute); at != std::string_view::npos;
       at = source.find(kAttribute, at + 1)) {
    const std::string_view rest = source.substr(at + kAttribute.size());
    if (is_assignment(rest)) return false;
    const bool is_whole_name = rest.find_first_of("_(abcdefghijklmnopqrstuvwxyz0123456789") != 0;
    is_read = is_read || is_whole_name;
  }
  return is_read;
}

// The folders lib/python3.X/site-packages, and Debian's lib/python3/dist-packages, below `prefix`.
std::vector<fs::path> package_folders(const fs::path& prefix) {
  std::vector<fs::path> folders;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(prefix / "lib", error)) {
    if (!entry.path().filename().string().starts_with("python")) continue;
    for (const char* name : {"site-packages", "dist-packages"}) {
      if (fs::is_directory(entry.path() / name, error)) folders.push_back(entry.path() / name);
    }
  }
  return folders;
}

}  // namespace

fs::path working_directory() {
  std::error_code error;
  fs::path directory = fs::current_path(error);
  if (error) {
    fail<ConfigError>(
        "the working directory cannot be read: {}: change to one that exists (cd \"$PWD\" if "
        "it was made anew)",
        error.message());
  }
  return directory;
}

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
  std::ranges::sort(names);
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
                        working_directory().string());
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

std::string_view local_rank_option(std::string_view source) {
  constexpr std::string_view kUnderscore = "--local_rank";
  constexpr std::string_view kDash = "--local-rank";
  if (source.find(kUnderscore) != std::string_view::npos) return kUnderscore;
  if (source.find(kDash) != std::string_view::npos) return kDash;
  return reads_attribute(source) ? kUnderscore : std::string_view();
}

std::string program_source(const std::string& name, bool is_module,
                           const std::filesystem::path& working_directory) {
  std::string source;
  if (!is_module) {
    if (try_read_text(working_directory / name, kMaxSource, source) != 0) source.clear();
    return source;
  }
  std::string path = name;
  std::ranges::replace(path, '.', '/');
  for (const std::string& file : {path + ".py", path + "/__main__.py"}) {
    if (try_read_text(working_directory / file, kMaxSource, source) == 0) return source;
  }
  return {};
}

bool has_package(const fs::path& python, const std::string& name, const Environment& environment) {
  std::vector<fs::path> folders;
  // The prefixes of a virtual environment and of the installation that its python links to.
  std::vector<fs::path> prefixes = {python.parent_path() / "..",
                                    fs::weakly_canonical(python).parent_path() / ".."};
  const std::string home = find_variable(environment, "HOME").value_or("");
  if (!home.empty()) prefixes.push_back(fs::path(home) / ".local");
  for (const fs::path& prefix : prefixes) {
    for (const fs::path& folder : package_folders(prefix)) folders.push_back(folder);
  }
  const std::string given = find_variable(environment, "PYTHONPATH").value_or("");
  if (!given.empty()) {
    for (const std::string_view folder : split(given, ':')) folders.emplace_back(folder);
  }
  std::error_code error;
  return std::ranges::any_of(
      folders, [&](const fs::path& folder) { return fs::is_directory(folder / name, error); });
}

std::optional<OwnPackage> find_own_package(const fs::path& launcher_directory) {
  const fs::path prefix = launcher_directory / "..";
  std::error_code error;
  const fs::path built = prefix / "python";
  if (fs::is_directory(built / "zerorun", error)) {
    // The link itself, not what it leads to: by it Python knows its environment.
    return OwnPackage{fs::weakly_canonical(built), fs::read_symlink(built / "interpreter", error)};
  }
  std::vector<fs::path> folders = package_folders(prefix);
  folders.push_back(prefix / "..");  // a wheel's command is in zerorun/bin
  for (const fs::path& folder : folders) {
    if (fs::exists(folder / "zerorun" / "__init__.py", error)) {
      return OwnPackage{fs::weakly_canonical(folder), launcher_directory / "python3"};
    }
  }
  return std::nullopt;
}

std::string absent_package(const fs::path& python, const Environment& environment,
                           const fs::path& launcher_directory) {
  if (has_package(python, "zerorun", environment)) return {};
  const std::optional<OwnPackage> own = find_own_package(launcher_directory);
  if (!own) {
    return fmt::format(
        "{} does not have the package zerorun, and this zerorun was built without it; run `pip "
        "install .` in zerorun's sources for that environment",
        python.string());
  }
  return fmt::format(
      "{} does not have the package zerorun; this zerorun's is for {}: set ZERORUN_PYTHON={} and "
      "PYTHONPATH={}, or run `pip install .` in zerorun's sources for the environment that you use",
      python.string(), own->python.string(), own->python.string(), own->folder.string());
}

std::optional<CompatFolders> find_compat(const fs::path& launcher_directory) {
  const std::optional<OwnPackage> own = find_own_package(launcher_directory);
  if (!own) return std::nullopt;
  const fs::path compat = own->folder / "zerorun" / "compat";
  std::error_code error;
  if (!fs::exists(compat / "site" / "deepspeed" / "__init__.py", error)) return std::nullopt;
  return CompatFolders{fs::weakly_canonical(compat / "site"), fs::weakly_canonical(compat / "bin"),
                       fs::weakly_canonical(compat / "start")};
}

std::optional<CompatFolders> choose_compat(const Program& program, bool wanted,
                                           const ProgramSearch& search,
                                           const Environment& environment) {
  if (!program.python || find_variable(environment, "ZERORUN_COMPAT") == "0") return std::nullopt;
  if (!wanted && has_package(program.command.front(), "deepspeed", environment))
    return std::nullopt;
  std::optional<CompatFolders> folders = find_compat(search.launcher_directory);
  if (wanted && !folders) {
    fail<ConfigError>(
        "--deepspeed_compat: this zerorun has no Python package; install it with pip install, or "
        "build it with -DZERORUN_PYTHON=ON");
  }
  return folders;
}

}  // namespace zerorun
