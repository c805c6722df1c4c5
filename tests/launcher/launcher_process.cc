#include "tests/launcher/launcher_process.h"

#include <sched.h>
#include <spawn.h>
#include <sys/syscall.h>

#include "launcher/ranks/report.h"
#include "tests/launcher/cluster_choice.h"

namespace zerorun::testing {

namespace {

// Far beyond what anything here takes: only a hang reaches it.
constexpr int kDeadlineMs = 60000;
constexpr std::string_view kScratch = "$SCRATCH";

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (std::string& text : strings) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

// A pipe that holds all of `text`, ready to be read.
FileDescriptor make_input(const std::string& text) {
  Pipe pipe = make_pipe();
  if (write(pipe.write.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    throw std::runtime_error("standard input is too long for a pipe");
  }
  return std::move(pipe.read);
}

// The first word of a line of /proc/PID/status.
std::string status_field(pid_t pid, std::string_view name) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  std::string word;
  while (status >> word) {
    if (word == name && status >> word) return word;
  }
  return {};
}

}  // namespace

LauncherProcess::LauncherProcess(std::vector<std::string> command,
                                 std::map<std::string, std::string> variables,
                                 std::string standard_input)
    : marker_("ZERORUN_TEST_MARKER=" + make_secret()) {
  Environment environment = inherited_environment();
  for (const auto& [name, value] : variables) environment[name] = value;
  std::vector<std::string> block = environment_block(environment);
  block.push_back(marker_);
  block.push_back("SCRATCH=" + scratch_.path().string());
  if (mkfifo(scratch_.path("fifo").c_str(), 0600) != 0) throw std::runtime_error("mkfifo failed");
  for (std::string& word : command) {
    if (word.starts_with(kScratch)) word.replace(0, kScratch.size(), scratch_.path().string());
  }

  Pipe output = make_pipe();
  Pipe errors = make_pipe();
  const FileDescriptor input = make_input(standard_input);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output.write.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, errors.write.get(), STDERR_FILENO);
  const int error = posix_spawnp(&pid_, command.front().c_str(), &actions, nullptr,
                                 pointers(command).data(), pointers(block).data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::runtime_error("cannot start " + command.front());
  output_pipe_ = std::move(output.read);
  error_pipe_ = std::move(errors.read);
}

LauncherProcess::~LauncherProcess() {
  for (const pid_t pid : members()) kill(pid, SIGKILL);
  if (!reaped_) waitpid(pid_, nullptr, 0);
}

bool LauncherProcess::read_more() {
  if (!output_pipe_ && !error_pipe_) return false;
  std::array<pollfd, 2> waits = {pollfd{output_pipe_.get(), POLLIN, 0},
                                 pollfd{error_pipe_.get(), POLLIN, 0}};
  if (poll(waits.data(), waits.size(), kDeadlineMs) <= 0) {
    throw std::runtime_error("no output within the deadline; so far: " + output_ + errors_);
  }
  const auto take = [](FileDescriptor& pipe, std::string& text) {
    std::array<char, 65536> buffer;
    const ssize_t count = read(pipe.get(), buffer.data(), buffer.size());
    if (count <= 0) return pipe.close();
    text.append(buffer.data(), static_cast<size_t>(count));
  };
  if (waits[0].revents != 0) take(output_pipe_, output_);
  if (waits[1].revents != 0) take(error_pipe_, errors_);
  return true;
}

std::string LauncherProcess::take_line(std::string& from) {
  size_t end = 0;
  while ((end = from.find('\n')) == std::string::npos) {
    if (!read_more()) throw std::runtime_error("output ended without the expected line: " + from);
  }
  std::string line = from.substr(0, end);
  from.erase(0, end + 1);
  return line;
}

std::string LauncherProcess::read_line() { return take_line(output_); }
void LauncherProcess::await_ready(int ranks) {
  for (int i = 0; i < ranks; ++i) ASSERT_EQ(read_line(), "ready");
}

std::string LauncherProcess::read_error_line() { return take_line(errors_); }

int LauncherProcess::wait() {
  while (read_more()) {
  }
  int status = 0;
  waitpid(pid_, &status, 0);
  reaped_ = true;
  return exit_code_of(status);
}

std::vector<pid_t> LauncherProcess::members() const {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    pid_t pid = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), pid).ec != std::errc()) continue;
    std::ifstream file(entry.path() / "environ");
    const std::string environment{std::istreambuf_iterator<char>(file), {}};
    if (environment.find(marker_) != std::string::npos) found.push_back(pid);
  }
  return found;
}

TEST_P(JobTest, EndsAsExpected) {
  const JobCase& row = GetParam();
  LauncherProcess job(row.command, row.variables, row.standard_input);
  job.await_ready(row.ready);
  if (row.signal != 0) kill(job.pid(), row.signal);
  EXPECT_THAT(job.end(), row.expected);
}

std::vector<std::string> zerorun_command(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), test_paths::build() + "/bin/zerorun");
  return arguments;
}

std::vector<std::string> shell_ranks(int ranks, const std::string& script,
                                     std::vector<std::string> options) {
  options.insert(options.begin(), {"--accelerator", "cpu", "--num_gpus", std::to_string(ranks)});
  options.insert(options.end(), {"sh", "-c", script});
  return zerorun_command(std::move(options));
}

std::vector<std::string> by_hand_command(int node_rank, int hosts, int ranks, uint16_t port,
                                         const std::vector<std::string>& words) {
  std::vector<std::string> arguments = words_of(fmt::format(
      "--accelerator cpu --nproc_per_node {} --nnodes {} --node_rank {} --master_addr 127.0.0.1 "
      "--master_port {}",
      ranks, hosts, node_rank, port));
  arguments.insert(arguments.end(), words.begin(), words.end());
  return zerorun_command(std::move(arguments));
}

std::map<std::string, std::string> path_from(const Scratch& folder) {
  return {{"PATH", folder.path().string() + ":" + inherited_environment()["PATH"]}};
}

std::multiset<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::multiset<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.insert(line);
  return lines;
}

bool wait_until_gone(const std::vector<pid_t>& pids) {
  for (const pid_t pid : pids) {
    const FileDescriptor process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    if (!process) continue;  // gone already
    pollfd ended = {process.get(), POLLIN, 0};
    if (poll(&ended, 1, kDeadlineMs) != 1) return false;
  }
  return true;
}

pid_t parent_of(pid_t pid) {
  const std::string parent = status_field(pid, "PPid:");
  return parent.empty() ? 0 : std::stoi(parent);
}

bool wait_for_state(pid_t pid, char state) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(kDeadlineMs);
  while (status_field(pid, "State:") != std::string(1, state)) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    sched_yield();  // the kernel offers nothing to wait on for another process's child
  }
  return true;
}

}  // namespace zerorun::testing
