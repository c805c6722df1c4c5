#include "launcher/ranks/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "core/log.h"
#include "core/parse_number.h"
#include "launcher/options.h"
#include "launcher/words.h"
#include "os/uninterrupted.h"

namespace zerorun {

namespace {

constexpr size_t kQueueLimit = size_t{1} << 20;
// A "line" longer than this is passed on in pieces.
constexpr size_t kLineLimit = size_t{1} << 16;
constexpr size_t kKeptLineLimit = 2000;

std::string_view final_state(std::string_view line) {
  while (line.ends_with('\r')) line.remove_suffix(1);
  return line.substr(line.rfind('\r') + 1);
}

constexpr unsigned kOutputBit = 1;
constexpr unsigned kErrorBit = 2;
constexpr unsigned kAllStreams = kOutputBit | kErrorBit;

// The streams that `value` names for a rank: a set of bits; nothing when it is malformed.
std::optional<unsigned> named_streams(std::string_view value, int local_rank) {
  if (value.find(':') == std::string_view::npos) {
    const std::optional<unsigned> all = value.empty() ? 0U : parse_number<unsigned>(value);
    return all && *all <= kAllStreams ? all : std::nullopt;
  }
  unsigned found = 0;
  for (const std::string_view part : split(value, ',')) {
    const size_t colon = std::min(part.find(':'), part.size());
    const std::optional<unsigned> rank = parse_number<unsigned>(part.substr(0, colon));
    const std::optional<unsigned> streams =
        parse_number<unsigned>(part.substr(std::min(colon + 1, part.size())));
    if (!rank || !streams || *streams > kAllStreams) return std::nullopt;
    if (*rank == static_cast<unsigned>(local_rank)) found = *streams;
  }
  return found;
}

}  // namespace

void OutputQueue::append(int source, std::string_view text) {
  if (text.empty() || broken_) return;
  if (in_line_ && source != last_source_) bytes_ += '\n';
  bytes_ += text;
  if (source != last_source_) trailing_lines_ = 0;
  trailing_lines_ += static_cast<size_t>(std::ranges::count(text, '\n'));
  last_source_ = source;
  in_line_ = text.back() != '\n';
}

bool OutputQueue::full() const { return bytes_.size() - written_ >= kQueueLimit; }

void OutputQueue::write_some() {
  if (!pending()) return;
  // Room reported by poll() is room for PIPE_BUF bytes at least (pipe(7)).
  const size_t nbytes = std::min<size_t>(bytes_.size() - written_, PIPE_BUF);
  const ssize_t done = ::write(fd_, bytes_.data() + written_, nbytes);
  if (done < 0) {
    if (errno == EINTR || errno == EAGAIN) return;
    broken_ = errno == EPIPE;
    if (!broken_) lose_text();
  } else {
    written_ += static_cast<size_t>(done);
  }
  if (broken_) written_ = bytes_.size();
  // Not at every write: with a slow reader, each would move all that is waiting.
  if (!pending() || written_ >= kQueueLimit) bytes_.erase(0, std::exchange(written_, 0));
}

void OutputQueue::lose_text() {
  if (!warned_) {
    Logger().warning("standard {} cannot be written ({}): output is lost, the job goes on",
                     fd_ == STDERR_FILENO ? "error" : "output", strerror(errno));
  }
  warned_ = true;
  written_ = bytes_.size();
}

void OutputQueues::add_to(PollSet& waits) {
  for (OutputQueue* queue : {&output, &errors}) {
    if (queue->pending()) waits.add(queue->fd(), POLLOUT, [queue] { queue->write_some(); });
  }
}

std::optional<int> write_rest(OutputQueues& queues, const FileDescriptor& signals,
                              const FileDescriptor& guardian, std::optional<int> asked) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kMoment{2000};
  Clock::time_point end = asked ? Clock::now() + kMoment : Clock::time_point::max();
  bool alone = false;
  while (queues.pending() && Clock::now() < end) {
    PollSet waits;
    queues.add_to(waits);
    waits.add(signals.get(), POLLIN, [&] {
      for (const int signal : take_signals(signals)) {
        if (role_of(signal) == SignalRole::stop && !asked) asked = signal;
      }
    });
    if (!alone) waits.add(guardian.get(), POLLIN, [&] { alone = true; });
    waits.wait(std::chrono::milliseconds(100));
    if (asked || alone) end = std::min(end, Clock::now() + kMoment);
  }
  return asked;
}

void LineRing::add(std::string_view line) {
  lines_.emplace_back(final_state(line).substr(0, kKeptLineLimit));
  if (lines_.size() > kLines) lines_.pop_front();
}

LogFile::LogFile(const std::string& path)
    : path_(path), file_(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
  if (!file_) fail<ConfigError>("--log_dir: cannot open {}: {}", path, strerror(errno));
}

bool LogFile::write(std::string_view text) {
  while (file_ && !text.empty()) {
    const ssize_t done =
        uninterrupted([&] { return ::write(file_.get(), text.data(), text.size()); });
    if (done < 0) {
      file_.close();
      return false;
    }
    text.remove_prefix(static_cast<size_t>(done));
  }
  return true;
}

RankStream::RankStream(FileDescriptor pipe, OutputRoute route)
    : pipe_(std::move(pipe)), route_(std::move(route)) {
  fcntl(pipe_.get(), F_SETFL, O_NONBLOCK);
}

bool RankStream::wants_data() const {
  return open() && (route_.queue == nullptr || !route_.queue->full());
}

bool RankStream::last_lines_in_view() const {
  return route_.queue != nullptr && route_.queue->trailing_lines(route_.source) >= ring_.size();
}

void RankStream::finish() {
  while (open() && read_some()) continue;
  end_line();
  pipe_.close();
}

bool RankStream::read_some() {
  std::array<char, 65536> buffer;
  const ssize_t count = read(pipe_.get(), buffer.data(), buffer.size());
  if (count < 0) return errno == EINTR;
  if (count == 0) {
    end_line();
    pipe_.close();
    return false;
  }
  consume(std::string_view(buffer.data(), static_cast<size_t>(count)));
  // Nobody reads: the rank finds out as if it wrote there itself.
  if (route_.queue != nullptr && route_.queue->broken() && !route_.log) pipe_.close();
  return true;
}

void RankStream::consume(std::string_view text) {
  if (route_.log && !route_.log->write(text)) {
    Logger().warning("{} cannot be written any more ({}); the job goes on without it",
                     route_.log->path(), strerror(errno));
  }
  if (route_.immediate && route_.queue != nullptr) route_.queue->append(route_.source, text);
  for (;;) {
    const size_t end = text.find('\n');
    partial_ += text.substr(0, end);
    if (end == std::string_view::npos) break;
    if (!route_.taken || !route_.taken(partial_)) {
      ring_.add(partial_);
      partial_ += '\n';
      pass_line(partial_);
    }
    partial_.clear();
    text.remove_prefix(end + 1);
  }
  if (partial_.size() > kLineLimit) end_line();
}

void RankStream::pass_line(std::string_view line) {
  if (route_.immediate || route_.queue == nullptr) return;
  if (route_.prefix.empty()) {
    route_.queue->append(route_.source, line);
  } else {
    const bool ended = line.ends_with('\n');
    if (ended) line.remove_suffix(1);
    route_.queue->append(
        route_.source, fmt::format("{}{}{}", route_.prefix, final_state(line), ended ? "\n" : ""));
  }
}

void RankStream::end_line() {
  if (partial_.empty()) return;
  ring_.add(partial_);
  pass_line(partial_);
  partial_.clear();
}

RankStreams plan_streams(const OutputRequest& request, int local_rank, bool speaks) {
  const unsigned tee = named_streams(request.tee, local_rank).value_or(0);
  // --tee wins over --redirects: a stream that both name is printed.
  const unsigned files_only = named_streams(request.redirects, local_rank).value_or(0) & ~tee;
  const bool by_stream = !request.tee.empty() || !request.redirects.empty();
  const bool chosen =
      request.shown_ranks.empty() ||
      std::ranges::find(request.shown_ranks, local_rank) != request.shown_ranks.end();
  const auto plan = [&](unsigned bit) {
    StreamPlan stream;
    stream.logged = by_stream ? ((tee | files_only) & bit) != 0 : !request.log_dir.empty();
    stream.shown = by_stream ? (files_only & bit) == 0 : !stream.logged || speaks;
    stream.shown = stream.shown && chosen;
    return stream;
  };
  return {.output = plan(kOutputBit), .error = plan(kErrorBit)};
}

void check_streams(std::string_view option, const std::string& value) {
  if (!value.empty() && named_streams(value, 0)) return;
  fail<ConfigError>(
      "{} '{}': expected 0 (none), 1 (standard output), 2 (standard error) or 3 (both), or these "
      "by local rank, as in 0:1,2:3",
      option, value);
}

}  // namespace zerorun
