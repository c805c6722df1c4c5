#pragma once

#include <unistd.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/ranks/poll_set.h"
#include "launcher/ranks/process.h"

namespace zerorun {

// The output of ranks: passed on to the terminal, kept for the failure report, copied to log files.

// Bytes waiting to be written to one of the launcher's own streams. The supervisor must not block
// on a stopped terminal or a slow reader, so it writes only when poll() says that there is room.
class OutputQueue {
 public:
  explicit OutputQueue(int fd) : fd_(fd) {}

  int fd() const { return fd_; }
  // Adds text of `source`; if another source has left a line unfinished, ends that line first.
  void append(int source, std::string_view text);
  bool pending() const { return written_ < bytes_.size(); }
  // So much is waiting that ranks should wait as well.
  bool full() const;
  // Lines of `source` since text of another one, so at the end of what a reader sees.
  size_t trailing_lines(int source) const { return source == last_source_ ? trailing_lines_ : 0; }
  // The reader is gone: text is dropped. Where a disk is full text is lost, which is said once, and
  // what comes later is tried again.
  bool broken() const { return broken_; }
  // Writes as much as cannot block after poll() reported room.
  void write_some();

 private:
  void lose_text();

  int fd_;
  std::string bytes_;
  size_t written_ = 0;
  int last_source_ = -1;
  size_t trailing_lines_ = 0;
  bool in_line_ = false;
  bool broken_ = false;
  bool warned_ = false;
};

// The launcher's standard output and error.
struct OutputQueues {
  OutputQueue output{STDOUT_FILENO};
  OutputQueue errors{STDERR_FILENO};

  bool pending() const { return output.pending() || errors.pending(); }
  // Writes where there is room, while others are waited for.
  void add_to(PollSet& waits);
};

// Writes what is left when nothing else is to be done. A reader may take its time until a signal in
// `signals` asks to stop, as `asked` has done already, or `guardian` reads end-of-file: what cannot
// be written within a moment then is dropped. The signal, or nothing.
std::optional<int> write_rest(OutputQueues& queues, const FileDescriptor& signals,
                              const FileDescriptor& guardian, std::optional<int> asked = {});

// The last lines of a stream. Of text that overwrites itself with carriage returns (a progress bar)
// only the final state counts.
class LineRing {
 public:
  static constexpr size_t kLines = 20;

  void add(std::string_view line);
  size_t size() const { return lines_.size(); }
  std::vector<std::string> lines() const { return {lines_.begin(), lines_.end()}; }

 private:
  std::deque<std::string> lines_;
};

// One rank's file under --log_dir, appended to by both of its streams.
class LogFile {
 public:
  // Throws ConfigError when the file cannot be opened.
  explicit LogFile(const std::string& path);
  // False, once, when the file cannot be written any more (a full disk).
  bool write(std::string_view text);
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  FileDescriptor file_;
};

struct OutputRoute {
  OutputQueue* queue = nullptr;    // outlives the stream; null = nowhere
  int source = 0;                  // distinguishes streams that share the queue
  std::string prefix{};            // of every line
  bool immediate = false;          // unfinished lines are passed on too (prompts, progress bars)
  std::shared_ptr<LogFile> log{};  // or null
  // Takes each line first; a line for which it returns true is not shown. May be null.
  std::function<bool(std::string_view line)> taken{};
};

// The supervisor's end of a rank's stdout or stderr.
class RankStream {
 public:
  RankStream(FileDescriptor pipe, OutputRoute route);

  bool open() const { return static_cast<bool>(pipe_); }
  bool wants_data() const;
  int fd() const { return pipe_.get(); }
  // Takes what poll() reported; closes at the end of the stream.
  void read_some();
  // Takes everything that is there, without waiting for more, and closes.
  void finish();
  std::vector<std::string> last_lines() const { return ring_.lines(); }
  // Nothing but them stands at the end of what the user reads.
  bool last_lines_in_view() const;

 private:
  // False when nothing more is to be had now.
  bool read_once();
  void consume(std::string_view text);
  void pass_line(std::string_view line);
  void end_line();

  FileDescriptor pipe_;
  OutputRoute route_;
  LineRing ring_;
  std::string partial_;  // the unfinished line
};

}  // namespace zerorun
