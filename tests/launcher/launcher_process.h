#pragma once

#include "launcher/ranks/process.h"
#include "tests/common.h"

namespace zerorun::testing {

// How a command ended.
struct Ended {
  int code = 0;        // as a shell gives it
  std::string output;  // what read_line() has not taken
  std::string errors;
  std::vector<pid_t> left;  // what it has started and is still there

  friend void PrintTo(const Ended& end, std::ostream* out) {
    *out << "code " << end.code << ", output:\n" << end.output << "errors:\n" << end.errors;
  }
};
using TextMatcher = ::testing::Matcher<const std::string&>;

// With this code, and nothing left over.
inline ::testing::Matcher<const Ended&> ended(int code, const TextMatcher& errors = ::testing::_,
                                              const TextMatcher& output = ::testing::_) {
  return ::testing::FieldsAre(code, output, errors, IsEmpty());
}

// The zerorun command as a user runs it: a real process with real ranks. Everything that it starts
// inherits a marker variable, by which survivors are found, and $SCRATCH, a folder with a `fifo`; a
// word of the command may begin with it.
class LauncherProcess {
 public:
  // The program is given by its path or found in PATH.
  explicit LauncherProcess(std::vector<std::string> command,
                           std::map<std::string, std::string> variables = {},
                           std::string standard_input = "");
  LauncherProcess(const LauncherProcess&) = delete;
  LauncherProcess& operator=(const LauncherProcess&) = delete;
  // Kills what is left.
  ~LauncherProcess();

  pid_t pid() const { return pid_; }
  // Waits for the next line on standard output or error.
  std::string read_line();
  std::string read_error_line();
  // Waits until so many ranks have said "ready" on standard output.
  void await_ready(int ranks);
  // Waits for the process and the end of its output. Exit code as a shell gives it.
  int wait();
  Ended end() { return {wait(), output_, errors_, members()}; }
  // Output that read_line() has not taken.
  const std::string& output() const { return output_; }
  const std::string& errors() const { return errors_; }

  // Processes with the marker, the launcher included.
  std::vector<pid_t> members() const;
  const Scratch& scratch() const { return scratch_; }

 private:
  // Waits for more output; false at the end of both streams.
  bool read_more();
  std::string take_line(std::string& from);

  const Scratch scratch_;
  std::string marker_;
  pid_t pid_ = -1;
  bool reaped_ = false;
  FileDescriptor output_pipe_;
  FileDescriptor error_pipe_;
  std::string output_;
  std::string errors_;
};

// A command and how it ends.
struct JobCase {
  std::string label;
  std::vector<std::string> command;
  ::testing::Matcher<const Ended&> expected;
  int ready = 0;   // ranks that say so
  int signal = 0;  // to the launcher, after that
  std::map<std::string, std::string> variables{};
  std::string standard_input{};

  friend void PrintTo(const JobCase& row, std::ostream* out) { *out << row.label; }
};
class JobTest : public ::testing::TestWithParam<JobCase> {};

// zerorun itself, in front of `arguments`.
std::vector<std::string> zerorun_command(std::vector<std::string> arguments);

// zerorun starting ranks on CPUs that run a shell script.
std::vector<std::string> shell_ranks(int ranks, const std::string& script,
                                     std::vector<std::string> options = {});

// zerorun that somebody starts as one of several hosts, all of which are this machine.
std::vector<std::string> by_hand_command(int node_rank, int hosts, int ranks, uint16_t port,
                                         const std::vector<std::string>& words);

// The PATH in which the programs of this folder come first.
std::map<std::string, std::string> path_from(const Scratch& folder);

std::multiset<std::string> lines_of(const std::string& text);
inline TextMatcher lines_are(std::multiset<std::string> lines) {
  return ::testing::ResultOf(lines_of, std::move(lines));
}

// Waits until all of `pids` have ended; false after a generous deadline.
bool wait_until_gone(const std::vector<pid_t>& pids);
pid_t parent_of(pid_t pid);
// Waits until the process is in a state of proc(5), such as 'T' for stopped.
bool wait_for_state(pid_t pid, char state);

}  // namespace zerorun::testing
