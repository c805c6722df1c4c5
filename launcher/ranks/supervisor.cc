#include "launcher/ranks/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "core/check.h"
#include "core/joined.h"
#include "launcher/ranks/process.h"
#include "os/free_space.h"
#include "os/uninterrupted.h"

namespace zerorun {

namespace {

// From the first failure to SIGKILL, and for processes to vanish after it.
constexpr std::chrono::milliseconds kFailureGrace{1500};
constexpr std::chrono::milliseconds kEndTimeout{2000};
// For what successful ranks leave behind, as a background upload.
constexpr std::chrono::milliseconds kLeftoverGrace{5000};

// The supervisor's end of a new pipe goes to `rank`; returns the rank's end.
FileDescriptor add_stream(RankProcess& rank, OutputRoute route) {
  Pipe pipe = make_pipe();
  rank.streams.emplace_back(std::move(pipe.read), std::move(route));
  return std::move(pipe.write);
}

std::string process_name(pid_t pid) {
  std::string name;
  std::getline(std::ifstream(fmt::format("/proc/{}/comm", pid)), name);
  return name.empty() ? "?" : name;
}

bool succeeded(int status) { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }

}  // namespace

Supervisor::Supervisor(Job job, const FileDescriptor& guardian, const sigset_t& rank_signal_mask,
                       OutputQueues& output, ControlConnection* coordinator)
    : job_(std::move(job)),
      rank_signal_mask_(rank_signal_mask),
      guardian_(guardian.get()),
      coordinator_(coordinator),
      signals_(open_signals()),
      output_(output),
      ranks_(job_.ranks.size()),
      oom_kills_before_(cgroup_.oom_kills()) {
  signal(SIGPIPE, SIG_IGN);  // a reader that went away is an error of write()
}

RunEnd Supervisor::run() {
  try {
    start_ranks();
    handle_coordinator();  // who may have said something already that came with the order to begin
    while (any_running() && phase_ != Phase::abandoned) wait_and_handle();
    if (phase_ == Phase::running) wait_for_leftovers();
  } catch (...) {
    end_descendants(kEndTimeout);
    throw;
  }
  const bool all_ended = end_descendants(kEndTimeout);
  for (RankProcess& rank : ranks_) {
    for (RankStream& stream : rank.streams) stream.finish();
  }
  if (!all_ended) output_.say("warning: some processes of the job do not react to SIGKILL");
  return conclude();
}

void Supervisor::start_ranks() {
  if (!job_.log_dir.empty()) {
    std::error_code error;
    std::filesystem::create_directories(job_.log_dir, error);
    if (error) fail<ConfigError>("--log_dir '{}': {}", job_.log_dir, error.message());
  }
  error_folder_ = make_error_folder(job_.error_folder);
  const FileDescriptor null_device(open("/dev/null", O_RDONLY | O_CLOEXEC));
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    start_rank(static_cast<int>(rank), null_device);
  }
  job_.rendezvous.reset();  // the port is rank 0's now, and goes with it
}

void Supervisor::start_rank(int number, const FileDescriptor& null_device) {
  RankProcess& rank = ranks_[static_cast<size_t>(number)];
  const RankPlan& plan = job_.ranks[static_cast<size_t>(number)];
  OutputRoute out;
  OutputRoute err;
  const RankStreams& streams = plan.streams;
  const int global = job_.cluster.first_rank() + number;
  if (streams.output.logged || streams.error.logged) {
    const auto log = std::make_shared<LogFile>(fmt::format("{}/rank{}.log", job_.log_dir, global));
    if (streams.output.logged) out.log = log;
    if (streams.error.logged) err.log = log;
  }
  if (streams.output.shown) out.queue = &output_.output;
  if (streams.error.shown) err.queue = &output_.errors;
  out.source = err.source = number;
  // Standard output is data and stays as it is; standard error says who speaks.
  if (global != 0) err.prefix = fmt::format("[rank {}] ", global);
  err.immediate = global == 0 && isatty(STDERR_FILENO) == 1;
  // Rank 0 keeps the terminal, so that interactive programs and progress bars work.
  const bool keeps_terminal =
      global == 0 && out.queue != nullptr && !out.log && isatty(STDOUT_FILENO) == 1;

  FileDescriptor out_end;
  if (!keeps_terminal) out_end = add_stream(rank, std::move(out));
  const FileDescriptor err_end = add_stream(rank, std::move(err));
  SpawnRequest request;
  request.command = plan.command;
  request.environment = environment_block(rank_environment(job_.inherited, plan.variables));
  request.cpus = plan.cpus;
  request.standard_input = global == 0 ? -1 : null_device.get();
  request.standard_output = out_end.get();
  request.standard_error = err_end.get();
  if (number == 0 && job_.rendezvous) request.kept_open = job_.rendezvous->get();
  request.signal_mask = rank_signal_mask_;
  rank.pid = spawn(request);
}

void Supervisor::wait_and_handle() {
  PollSet waits;
  for (RankProcess& rank : ranks_) {
    for (RankStream& stream : rank.streams) {
      if (stream.wants_data()) waits.add(stream.fd(), POLLIN, [&stream] { stream.read_some(); });
    }
  }
  output_.add_to(waits);
  waits.add(signals_.get(), POLLIN, [this] {
    for (const int signal : take_signals(signals_)) handle_signal(signal, Requester::here);
  });
  waits.add(guardian_, POLLIN, [this] {
    guardian_ = -1;
    handle(Event::orphaned);
  });
  if (coordinator_ != nullptr) waits.add(coordinator_->fd(), coordinator_->events(), [] {});
  waits.wait(time_to_wait());
  handle_coordinator();
  if (deadline_ && Clock::now() >= *deadline_) handle(Event::overdue);
}

std::chrono::milliseconds Supervisor::time_to_wait() const {
  std::chrono::milliseconds time{-1};  // no limit
  if (coordinator_ != nullptr && coordinator_->open()) time = ControlConnection::kBeat;
  if (!deadline_) return time;
  const auto left = std::max(Clock::duration(0), *deadline_ - Clock::now());
  const auto until = std::chrono::ceil<std::chrono::milliseconds>(left);
  return time.count() < 0 ? until : std::min(time, until);
}

bool Supervisor::handle(Event event) {
  const Phase next = kNextPhase[static_cast<size_t>(phase_)][static_cast<size_t>(event)];
  if (next == phase_) return false;
  if (phase_ == Phase::stopping && event == Event::overdue) {
    output_.say(
        "warning: not all ranks have ended within {} s: they are killed; --grace_period gives them "
        "longer",
        job_.grace_period.count() / 1000.0);
  }
  phase_ = next;
  if (phase_ == Phase::stopping) deadline_ = Clock::now() + job_.grace_period;
  if (phase_ == Phase::failing) {
    deadline_ = Clock::now() + kFailureGrace;
    signal_ranks(SIGTERM, Reach::rank);
  }
  if (phase_ == Phase::killing) {
    deadline_ = Clock::now() + kEndTimeout;
    kill_descendants();
  }
  return true;
}

void Supervisor::handle_signal(int signal, Requester requester) {
  switch (role_of(signal)) {
    case SignalRole::child:
      return reap();
    case SignalRole::stop:
      return stop_job(signal, requester);
    case SignalRole::pass:
      return signal_ranks(signal, Reach::rank);
    case SignalRole::suspend:
      suspended_ = true;
      return signal_ranks(SIGSTOP, Reach::group);
    case SignalRole::resume:
      suspended_ = false;
      return signal_ranks(SIGCONT, Reach::group);
    case SignalRole::none:
      return;
  }
}

void Supervisor::handle_coordinator() {
  if (coordinator_ == nullptr || phase_ == Phase::killing || phase_ == Phase::abandoned) return;
  coordinator_->service();
  while (const auto message = coordinator_->next()) {
    if (message->is("signal")) {
      handle_signal(static_cast<int>(message->number("signal", 1, SIGRTMIN - 1)),
                    Requester::coordinator);
    } else if (message->is("stop")) {
      stop_job(static_cast<int>(message->number("signal", 1, SIGRTMIN - 1)), Requester::other_host);
    } else if (message->is("end") && handle(Event::failed_elsewhere)) {
      outcome_.elsewhere = true;
    }
  }
  const Clock::time_point now = Clock::now();
  coordinator_->beat(now);
  if (coordinator_->open() && !coordinator_->silent(now)) return;
  coordinator_->close();
  handle(Event::orphaned);
}

void Supervisor::reap() {
  std::vector<int> ended;
  for (;;) {
    int status = 0;
    const pid_t pid = waitpid(-1, &status, WNOHANG | WUNTRACED | WCONTINUED);
    if (pid <= 0) break;
    const auto rank = std::ranges::find(ranks_, pid, &RankProcess::pid);
    if (rank == ranks_.end()) continue;  // an orphan that a rank left behind
    if (!WIFEXITED(status) && !WIFSIGNALED(status)) {
      note_state(*rank, status);
      continue;
    }
    rank->status = status;
    ended.push_back(static_cast<int>(rank - ranks_.begin()));
  }
  judge_ends(ended);
}

void Supervisor::note_state(RankProcess& rank, int status) {
  if (WIFCONTINUED(status)) rank.stopped = false;
  if (!WIFSTOPPED(status) || suspended_ || phase_ != Phase::running) return;
  rank.stopped = true;
  const auto number = job_.cluster.first_rank() + (&rank - ranks_.data());
  output_.say(
      "warning: rank {} (pid {} on {}) was stopped by {}: its peers wait for it; kill -CONT {} "
      "lets it go on",
      number, rank.pid, job_.host, signal_name(WSTOPSIG(status)), rank.pid);
}

void Supervisor::judge_ends(const std::vector<int>& ended) {
  if (phase_ != Phase::running && phase_ != Phase::stopping) return;
  std::optional<int> failed;
  for (const int number : ended) {
    const RankProcess& rank = ranks_[static_cast<size_t>(number)];
    if (succeeded(*rank.status) || ended_by_request(rank)) continue;
    // When ranks ended together, the one that a signal killed took the others with it.
    if (!failed || WIFSIGNALED(*rank.status)) failed = number;
  }
  if (!failed || outcome_.failed_rank) return;
  if (handle(Event::rank_failed)) {
    outcome_.failed_rank = failed;
    if (coordinator_ != nullptr) coordinator_->send(ControlMessage("failed"));
    return;
  }
  // Asked to end, a rank failed, perhaps in saving; the others may still be able to. But where a
  // rank had no handler and the signal killed it, its peers fail for want of it.
  const bool killed = std::ranges::any_of(ranks_, [this](const RankProcess& rank) {
    return rank.status && WIFSIGNALED(*rank.status) && ended_by_request(rank);
  });
  if (!killed) outcome_.failed_rank = failed;
}

bool Supervisor::ended_by_request(const RankProcess& rank) const {
  return outcome_.stop_signal && exit_code_of(*rank.status) == 128 + *outcome_.stop_signal;
}

void Supervisor::stop_job(int signal, Requester requester) {
  const bool again = !outcome_.requesters.insert(requester).second;
  // Only a repeated Ctrl-C means impatience: a closing terminal and `timeout` send their signals
  // twice.
  if (again && signal == SIGINT) handle(Event::interrupted_again);
  if (!handle(Event::stop_requested)) return;
  outcome_.stop_signal = signal;
  if (coordinator_ != nullptr) {
    coordinator_->send(ControlMessage("stopping").add("signal", signal));
  } else {
    output_.say("{}: ending {} rank{} within {} s", signal_name(signal), ranks_.size(),
                ranks_.size() == 1 ? "" : "s", job_.grace_period.count() / 1000.0);
  }
  // A terminal's signals reach whole process groups. SIGTERM does not: a data loader's workers must
  // live on while their rank saves.
  signal_ranks(signal, signal == SIGTERM ? Reach::rank : Reach::group);
}

void Supervisor::signal_ranks(int signal, Reach reach) {
  for (const RankProcess& rank : ranks_) {
    if (rank.pid <= 0 || rank.status) continue;
    kill(reach == Reach::group ? -rank.pid : rank.pid, signal);
  }
}

bool Supervisor::any_running() const {
  return std::ranges::any_of(ranks_, [](const RankProcess& rank) { return !rank.status; });
}

void Supervisor::wait_for_leftovers() {
  // Helpers of Python end just after their parent.
  constexpr std::chrono::milliseconds kUnsaid{300};
  const Clock::time_point started = Clock::now();
  const std::chrono::milliseconds grace = std::min(kLeftoverGrace, job_.grace_period);
  const auto wait_until = [this](Clock::time_point end) {
    while (has_children() && phase_ == Phase::running && !outcome_.stop_signal &&
           Clock::now() < end) {
      deadline_ = end;
      wait_and_handle();
    }
    deadline_.reset();
    return !has_children();
  };
  if (wait_until(started + std::min(kUnsaid, grace))) return;
  const std::string names = joined(descendants(), ", ", [](pid_t pid) {
    return fmt::format("{} (pid {})", process_name(pid), pid);
  });
  output_.say("the ranks on {} have ended and left processes behind; they have {} s to end: {}",
              job_.host, grace.count() / 1000.0, names);
  if (!wait_until(started + grace)) {
    output_.say("warning: what the ranks on {} have left behind has not ended and is killed",
                job_.host);
  }
}

RankFailure Supervisor::describe_failed_rank() const {
  const RankProcess& rank = ranks_[static_cast<size_t>(*outcome_.failed_rank)];
  RankFailure failure;
  failure.rank = job_.cluster.first_rank() + *outcome_.failed_rank;
  failure.ranks = job_.cluster.world_size();
  failure.pid = rank.pid;
  failure.host = job_.host;
  failure.status = *rank.status;
  // Errors are on standard error; a program that keeps it empty has said it on standard output.
  for (auto stream = rank.streams.rbegin(); stream != rank.streams.rend(); ++stream) {
    if (!failure.last_lines.empty()) break;
    failure.last_lines = stream->last_lines();
    failure.lines_in_view = stream->last_lines_in_view();
  }
  // Other hosts may have said something since.
  if (coordinator_ != nullptr) failure.lines_in_view = false;
  failure.oom_kill = oom_kills_before_ && cgroup_.oom_kills() > oom_kills_before_;
  failure.shm_available = free_space("/dev/shm");
  failure.no_package = job_.no_package;
  failure.exception =
      read_error_record(job_.ranks[static_cast<size_t>(*outcome_.failed_rank)].error_file);
  for (const RankProcess& one : ranks_) {
    if (!one.stopped) continue;
    failure.stopped.push_back(
        {.rank = job_.cluster.first_rank() + static_cast<int>(&one - ranks_.data()),
         .pid = one.pid});
  }
  return failure;
}

RunEnd Supervisor::conclude() {
  if (outcome_.failed_rank) {
    const RankFailure failure = describe_failed_rank();
    return {.cause = RunEnd::Cause::failure,
            .code = exit_code_of(failure.status),
            .by_signal = WIFSIGNALED(failure.status),
            .report = describe_failure(failure),
            .summary = summarize_failure(failure)};
  }
  using Cause = RunEnd::Cause;
  if (outcome_.stop_signal) return {.cause = Cause::request, .code = 128 + *outcome_.stop_signal};
  if (outcome_.elsewhere) return {.cause = Cause::elsewhere, .code = 1};
  // Nobody is left to be told why.
  const bool alone = coordinator_ != nullptr && !coordinator_->open();
  if (guardian_ < 0 || alone) return {.cause = Cause::orphaned, .code = 1};
  return {};
}

}  // namespace zerorun
