#include "launcher/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "core/check.h"
#include "launcher/report.h"
#include "launcher/signals.h"
#include "os/free_space.h"

namespace zerorun {

namespace {

// From the first failure to SIGKILL, and for processes to vanish after it.
constexpr std::chrono::milliseconds kFailureGrace{1500};
constexpr std::chrono::milliseconds kEndTimeout{2000};

bool succeeded(int status) { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }

}  // namespace

Supervisor::Supervisor(Job job, FileDescriptor guardian, const sigset_t& rank_signal_mask)
    : job_(std::move(job)),
      rank_signal_mask_(rank_signal_mask),
      guardian_(std::move(guardian)),
      stdout_(STDOUT_FILENO),
      stderr_(STDERR_FILENO),
      ranks_(job_.ranks.size()),
      oom_kills_before_(cgroup_.oom_kills()) {
  const sigset_t signals = supervised_signals();
  signals_ = FileDescriptor(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) fail<IoError>("cannot open a signalfd: {}", std::strerror(errno));
  signal(SIGPIPE, SIG_IGN);  // a reader that went away is an error of write()
}

int Supervisor::run() {
  try {
    start_ranks();
    while (any_running() && phase_ != Phase::abandoned) wait_and_handle();
  } catch (...) {
    end_descendants(kEndTimeout);
    throw;
  }
  const bool all_ended = end_descendants(kEndTimeout);
  finish_output();
  if (!all_ended) {
    stderr_.append(-1, "[zerorun] warning: some processes of the job do not react to SIGKILL\n");
  }
  const int code = conclude();
  stderr_.drain();
  return code;
}

void Supervisor::start_ranks() {
  if (!job_.log_dir.empty()) {
    std::error_code error;
    std::filesystem::create_directories(job_.log_dir, error);
    if (error) fail<ConfigError>("--log_dir '{}': {}", job_.log_dir, error.message());
  }
  Pipe failure = make_pipe();
  const FileDescriptor null_device(open("/dev/null", O_RDONLY | O_CLOEXEC));
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    start_rank(static_cast<int>(rank), failure.write, null_device);
  }
  failure.write.close();
  job_.rendezvous.reset();  // the port is rank 0's now, and goes with it
  check_started(failure.read);
}

void Supervisor::start_rank(int number, const FileDescriptor& failure,
                            const FileDescriptor& null_device) {
  Rank& rank = ranks_[static_cast<size_t>(number)];
  const RankPlan& plan = job_.ranks[static_cast<size_t>(number)];
  OutputRoute out;
  OutputRoute err;
  if (!job_.log_dir.empty()) {
    out.log = err.log =
        std::make_shared<LogFile>(fmt::format("{}/rank{}.log", job_.log_dir, number));
  }
  // With log files, rank 0 speaks for all on the terminal.
  if (number == 0 || !out.log) {
    out.queue = &stdout_;
    err.queue = &stderr_;
  }
  out.source = err.source = number;
  // Standard output is data and stays as it is; standard error says who speaks.
  if (number != 0) err.prefix = fmt::format("[rank {}] ", number);
  err.immediate = number == 0 && isatty(STDERR_FILENO) == 1;
  // Rank 0 keeps the terminal, so that interactive programs and progress bars work.
  const bool keeps_terminal = number == 0 && !out.log && isatty(STDOUT_FILENO) == 1;

  FileDescriptor out_end;
  if (!keeps_terminal) out_end = add_stream(rank, std::move(out));
  const FileDescriptor err_end = add_stream(rank, std::move(err));
  SpawnRequest request;
  request.command = plan.command;
  request.environment = environment_block(rank_environment(job_.inherited, plan.variables));
  request.cpus = plan.cpus;
  request.standard_input = number == 0 ? -1 : null_device.get();
  request.standard_output = out_end.get();
  request.standard_error = err_end.get();
  if (number == 0 && job_.rendezvous) request.kept_open = job_.rendezvous->get();
  request.signal_mask = rank_signal_mask_;
  rank.pid = spawn(request, failure);
}

FileDescriptor Supervisor::add_stream(Rank& rank, OutputRoute route) {
  Pipe pipe = make_pipe();
  rank.streams.emplace_back(std::move(pipe.read), std::move(route));
  return std::move(pipe.write);
}

void Supervisor::check_started(const FileDescriptor& failure) {
  int error = 0;
  ssize_t count = 0;
  do {
    count = read(failure.get(), &error, sizeof(error));
  } while (count < 0 && errno == EINTR);
  if (count != sizeof(error)) return;  // closed by every exec
  const std::string& path = job_.ranks.front().command.front();
  fail<ConfigError>("cannot execute {}: {}{}", path, std::strerror(error),
                    error == ENOEXEC ? "; a script needs a first line such as #!/bin/sh" : "");
}

void Supervisor::wait_and_handle() {
  // poll() skips negative descriptors.
  const auto if_pending = [](const OutputQueue& queue) {
    return queue.pending() ? queue.fd() : -1;
  };
  std::vector<pollfd> waits = {{signals_.get(), POLLIN, 0},
                               {guardian_.get(), POLLIN, 0},
                               {if_pending(stdout_), POLLOUT, 0},
                               {if_pending(stderr_), POLLOUT, 0}};
  const size_t first_stream = waits.size();
  std::vector<RankStream*> streams;
  for (Rank& rank : ranks_) {
    for (RankStream& stream : rank.streams) {
      if (!stream.wants_data()) continue;
      waits.push_back({stream.fd(), POLLIN, 0});
      streams.push_back(&stream);
    }
  }
  if (poll(waits.data(), waits.size(), milliseconds_to_deadline()) < 0) {
    if (errno == EINTR) return;
    fail<IoError>("poll failed: {}", std::strerror(errno));
  }
  for (size_t i = 0; i < streams.size(); ++i) {
    if (waits[first_stream + i].revents != 0) streams[i]->read_some();
  }
  if (waits[2].revents != 0) stdout_.write_some();
  if (waits[3].revents != 0) stderr_.write_some();
  if (waits[0].revents != 0) handle_signals();
  if (waits[1].revents != 0) {
    guardian_.close();
    kill_job();
  }
  handle_deadline();
}

int Supervisor::milliseconds_to_deadline() const {
  if (!deadline_) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline_ - Clock::now());
  return static_cast<int>(std::max<int64_t>(0, left.count()));
}

void Supervisor::handle_deadline() {
  if (!deadline_ || Clock::now() < *deadline_) return;
  if (phase_ == Phase::killing) {
    phase_ = Phase::abandoned;
    return;
  }
  if (phase_ == Phase::stopping) {
    stderr_.append(-1, fmt::format("[zerorun] warning: not all ranks have ended within {} s: they "
                                   "are killed; --grace_period gives them longer\n",
                                   job_.grace_period.count() / 1000.0));
  }
  kill_job();
}

void Supervisor::handle_signals() {
  signalfd_siginfo info{};
  while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    const int signal = static_cast<int>(info.ssi_signo);
    switch (role_of(signal)) {
      case SignalRole::child:
        reap();
        break;
      case SignalRole::stop:
        stop_job(signal);
        break;
      case SignalRole::pass:
        signal_ranks(signal, Reach::rank);
        break;
      case SignalRole::suspend:
        signal_ranks(SIGSTOP, Reach::group);
        break;
      case SignalRole::resume:
        signal_ranks(SIGCONT, Reach::group);
        break;
      case SignalRole::none:
        break;
    }
  }
}

void Supervisor::reap() {
  std::vector<int> ended;
  for (;;) {
    int status = 0;
    const pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid <= 0) break;
    const auto rank = std::find_if(ranks_.begin(), ranks_.end(),
                                   [pid](const Rank& one) { return one.pid == pid; });
    if (rank == ranks_.end()) continue;  // an orphan that a rank left behind
    rank->status = status;
    ended.push_back(static_cast<int>(rank - ranks_.begin()));
  }
  judge_ends(ended);
}

void Supervisor::judge_ends(const std::vector<int>& ended) {
  if (phase_ != Phase::running && phase_ != Phase::stopping) return;
  std::optional<int> failed;
  for (const int number : ended) {
    const Rank& rank = ranks_[static_cast<size_t>(number)];
    if (succeeded(*rank.status) || ended_by_request(rank)) continue;
    // When ranks ended together, the one that a signal killed took the others with it.
    if (!failed || WIFSIGNALED(*rank.status)) failed = number;
  }
  if (!failed || failed_rank_) return;
  if (phase_ == Phase::running) return fail_job(*failed);
  // Asked to end, a rank failed, perhaps in saving; the others may still be able to. But where a
  // rank had no handler and the signal killed it, its peers fail for want of it.
  const bool killed = std::any_of(ranks_.begin(), ranks_.end(), [this](const Rank& rank) {
    return rank.status && WIFSIGNALED(*rank.status) && ended_by_request(rank);
  });
  if (!killed) failed_rank_ = failed;
}

bool Supervisor::ended_by_request(const Rank& rank) const {
  return stop_signal_ && exit_code_of(*rank.status) == 128 + *stop_signal_;
}

void Supervisor::fail_job(int rank) {
  phase_ = Phase::failing;
  failed_rank_ = rank;
  deadline_ = Clock::now() + kFailureGrace;
  signal_ranks(SIGTERM, Reach::rank);
}

void Supervisor::stop_job(int signal) {
  if (phase_ != Phase::running) {
    // Only a repeated Ctrl-C means impatience: a closing terminal and `timeout` send their signals
    // twice.
    if (phase_ == Phase::stopping && signal == SIGINT) kill_job();
    return;
  }
  phase_ = Phase::stopping;
  stop_signal_ = signal;
  deadline_ = Clock::now() + job_.grace_period;
  stderr_.append(-1, fmt::format("[zerorun] {}: ending {} rank{} within {} s\n",
                                 signal_name(signal), ranks_.size(), ranks_.size() == 1 ? "" : "s",
                                 job_.grace_period.count() / 1000.0));
  // A terminal's signals reach whole process groups. SIGTERM does not: a data loader's workers must
  // live on while their rank saves.
  signal_ranks(signal, signal == SIGTERM ? Reach::rank : Reach::group);
}

void Supervisor::kill_job() {
  phase_ = Phase::killing;
  deadline_ = Clock::now() + kEndTimeout;
  kill_descendants();
}

void Supervisor::signal_ranks(int signal, Reach reach) {
  for (const Rank& rank : ranks_) {
    if (rank.pid <= 0 || rank.status) continue;
    kill(reach == Reach::group ? -rank.pid : rank.pid, signal);
  }
}

bool Supervisor::any_running() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return !rank.status; });
}

void Supervisor::finish_output() {
  for (Rank& rank : ranks_) {
    for (RankStream& stream : rank.streams) stream.finish();
  }
  stdout_.drain();
  stderr_.drain();
}

int Supervisor::conclude() {
  if (!failed_rank_) {
    // Also after Phase::killing because the guardian died: nobody is left to be told.
    return stop_signal_ ? 128 + *stop_signal_ : 0;
  }
  const Rank& rank = ranks_[static_cast<size_t>(*failed_rank_)];
  RankFailure failure;
  failure.rank = *failed_rank_;
  failure.ranks = static_cast<int>(ranks_.size());
  failure.pid = rank.pid;
  failure.host = job_.host;
  failure.status = *rank.status;
  // Errors are on standard error; a program that keeps it empty has said it on standard output.
  for (auto stream = rank.streams.rbegin(); stream != rank.streams.rend(); ++stream) {
    if (!failure.last_lines.empty()) break;
    failure.last_lines = stream->last_lines();
    failure.lines_in_view = stream->last_lines_in_view();
  }
  failure.oom_kill = oom_kills_before_ && cgroup_.oom_kills() > oom_kills_before_;
  failure.shm_available = free_space("/dev/shm");
  stderr_.append(-1, describe_failure(failure));
  return exit_code_of(failure.status);
}

}  // namespace zerorun
