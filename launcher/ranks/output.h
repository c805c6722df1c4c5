#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/ranks/process.h"

namespace zerorun {

// The output of ranks: printed on the terminal, kept for the failure report, and copied to log
// files.

// A queue of bytes for stdout or stderr of the launcher. The supervisor must not block on a stopped
// terminal or a slow reader, so it writes only when poll() reports space.
class OutputQueue {
 public:
  explicit OutputQueue(int fd) : fd_(fd) {}

  int fd() const { return fd_; }
  // Adds text of `source`. If another source has left a line unfinished, ends that line first.
  void append(int source, std::string_view text);
  bool pending() const { return written_ < bytes_.size(); }
  // True if so many bytes are waiting that reading from ranks should pause.
  bool full() const;
  // The number of lines of `source` since the last text of another source, that is, at the end of
  // the output.
  size_t trailing_lines(int source) const { return source == last_source_ ? trailing_lines_ : 0; }
  // True if the reader is gone; text is then dropped. If a disk is full, text is lost, a message
  // says so once, and later text is tried again.
  bool broken() const { return broken_; }
  // Writes as much as is possible without blocking, after poll() reported space.
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
  // A line of the launcher itself.
  template <typename... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) {
    errors.append(-1, "[zerorun] " + fmt::format(format, std::forward<Args>(args)...) + "\n");
  }
  // Adds both to the descriptors that are waited for, and writes when there is space.
  void add_to(PollSet& waits);
};

// Writes the remaining text, when nothing else is left to do. A slow reader may take its time until
// a signal in `signals` asks to stop (`asked`: one already has) or `guardian` reads end-of-file;
// text that cannot be written within a moment after that is dropped. Returns the signal, if any.
std::optional<int> write_rest(OutputQueues& queues, const FileDescriptor& signals,
                              const FileDescriptor& guardian, std::optional<int> asked = {});

// The last lines of a stream. If text overwrites itself with carriage returns (a progress bar),
// only its final state is kept.
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
  // Throws ConfigError if the file cannot be opened.
  explicit LogFile(const std::string& path);
  // Returns false, once, if the file cannot be written any more (a full disk).
  bool write(std::string_view text);
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  FileDescriptor file_;
};

struct OutputRoute {
  OutputQueue* queue = nullptr;    // outlives the stream; null = nowhere
  int source = 0;                  // distinguishes streams that share the queue
  std::string prefix{};            // printed before every line
  bool immediate = false;          // print unfinished lines, too (prompts, progress bars)
  std::shared_ptr<LogFile> log{};  // or null
  // Called with each line first. A line for which it returns true is not printed. May be null.
  std::function<bool(std::string_view line)> taken{};
};

// The supervisor's end of a rank's stdout or stderr.
class RankStream {
 public:
  RankStream(FileDescriptor pipe, OutputRoute route);

  bool open() const { return static_cast<bool>(pipe_); }
  bool wants_data() const;
  int fd() const { return pipe_.get(); }
  // Reads after poll() reported data. Closes the pipe at the end of the stream. Returns false if no
  // more data is available now.
  bool read_some();
  // Reads everything that is available, without waiting for more, and closes the pipe.
  void finish();
  std::vector<std::string> last_lines() const { return ring_.lines(); }
  // True if last_lines() are the last lines that the launcher has printed.
  bool last_lines_in_view() const;

 private:
  void consume(std::string_view text);
  void pass_line(std::string_view line);
  void end_line();

  FileDescriptor pipe_;
  OutputRoute route_;
  LineRing ring_;
  std::string partial_;  // the unfinished line
};

struct OutputRequest;

// The destinations of one stream of a rank.
struct StreamPlan {
  bool shown = true;    // on the terminal
  bool logged = false;  // in the rank's file under the log folder

  bool operator==(const StreamPlan&) const = default;
};

// The plans of both streams of a rank.
struct RankStreams {
  StreamPlan output;
  StreamPlan error;

  bool operator==(const RankStreams&) const = default;
};

// Plans the streams of a rank from --log_dir, --redirects, --tee and --local_ranks_filter. With
// --log_dir alone, all output is logged, and only local rank 0 of the first host (`speaks`) also
// prints.
RankStreams plan_streams(const OutputRequest& request, int local_rank, bool speaks);

// Throws ConfigError unless `value` of `option` has torchrun's format: "3", or "0:1,2:3" by local
// rank, where 0 is neither stream, 1 stdout, 2 stderr and 3 both.
void check_streams(std::string_view option, const std::string& value);

}  // namespace zerorun
