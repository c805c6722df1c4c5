#include "launcher/control/node_launcher.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <utility>

#include "config/env.h"
#include "core/build_id.h"
#include "core/check.h"
#include "core/log.h"
#include "core/printable.h"
#include "launcher/hosts/remote_start.h"
#include "launcher/program.h"
#include "launcher/ranks/process.h"
#include "os/open_file.h"
#include "os/process_identity.h"
#include "os/socket.h"
#include "zerorun/version.h"

namespace zerorun {

namespace {

using Clock = std::chrono::steady_clock;

// The variables of the command that the user typed, for what is started here.
void take_over(const ControlMessage& job) {
  for (const std::string& entry : job.all("variable")) {
    const size_t equals = entry.find('=');
    if (equals == std::string::npos || equals == 0) continue;
    setenv(entry.substr(0, equals).c_str(), entry.substr(equals + 1).c_str(), 1);
  }
}

// The Python that runs the program, by the name of its file ("python3.11"); empty for other
// programs.
std::string python_of(const ProgramRequest& request) {
  const Program program = find_program(request, ProgramSearch::here());
  if (!program.python) return {};
  return std::filesystem::weakly_canonical(program.command.front()).filename().string();
}

// Ranks meet at another port than launchers, which a firewall may drop: the ranks would wait for
// each other until their own timeout. No rank listens yet, so a host that refuses is reached.
void check_way_to_ranks(const Meeting& meeting) {
  constexpr std::chrono::seconds kTime{2};
  constexpr int kAttempts = 3;  // a busy link may drop the packets of one
  ConnectionAttempt attempt;
  for (int i = 0; i < kAttempts; ++i) {
    attempt = attempt_to_connect(meeting.master_addr, meeting.master_port, kTime);
    const bool reached = std::ranges::any_of(
        attempt.failures, [](const auto& one) { return one.error == ECONNREFUSED; });
    if (attempt.socket || reached) return;
  }
  fail<ConfigError>(
      "the launchers reach each other, but this host does not reach rank 0 at {} port {} ({}): a "
      "firewall between the hosts has to let all TCP ports pass, because ranks listen on free ones "
      "(/proc/sys/net/ipv4/ip_local_port_range lists them)",
      meeting.master_addr, meeting.master_port, std::strerror(attempt.failures.back().error));
}

}  // namespace

ControlMessage introduce(const Introduction& introduction) {
  ControlMessage join("join");
  join.add("token", introduction.token)
      .add("version", ZERORUN_VERSION)
      .add("build", build_id().data())
      .add("host", host_name())
      .add("command", introduction.command)
      .add("index", introduction.index)
      .add("node_rank", introduction.node_rank)
      .add("slurm_name", read_environment("SLURMD_NODENAME").value_or(""))
      .add("time", static_cast<int64_t>(std::time(nullptr)))
      .add("openmpi_rank", read_environment("OMPI_COMM_WORLD_RANK").value_or(""));
  if (introduction.by_hand) join.add("program", program_text(*introduction.by_hand));
  return join;
}

std::string program_text(const LaunchOptions& options) {
  std::string text = options.program.name;
  for (const std::string& argument : options.program.arguments) text += " " + argument;
  return text;
}

EndpointWait::Limit join_timeout(const LaunchOptions& options) {
  const std::optional<int>& given = options.hosts.join_timeout_s;
  return {std::chrono::seconds(given.value_or(600)), given.has_value()};
}

NodeLauncher::NodeLauncher(Introduction introduction, const FileDescriptor& guardian,
                           const sigset_t& rank_signal_mask)
    : introduction_(std::move(introduction)),
      guardian_(guardian),
      rank_signal_mask_(rank_signal_mask),
      signals_(open_signals()),
      options_(introduction_.by_hand) {}

int NodeLauncher::run() {
  int code = 1;
  try {
    code = take_part();
  } catch (...) {
    write_rest(output_, signals_, guardian_, stop_signal_);
    throw;
  }
  const auto stopped = write_rest(output_, signals_, guardian_, stop_signal_);
  return stopped && code == 0 ? 128 + *stopped : code;
}

int NodeLauncher::take_part() {
  if (const auto code = connect()) return *code;
  for (;;) {
    const Clock::time_point now = Clock::now();
    connection_.beat(now);
    connection_.service();
    // One at a time: those that come with the order to begin are for the ranks' supervisor.
    while (const auto message = connection_.next()) {
      if (const auto code = handle(*message)) return *code;
    }
    if (!connection_.open() || connection_.silent(now)) {
      if (const auto code = connect_again()) return *code;
    }
    if (const auto code = wait(ControlConnection::kBeat)) return *code;
  }
}

std::optional<int> NodeLauncher::connect_again() {
  const std::string where =
      fmt::format("{} port {}", introduction_.endpoint_host, introduction_.endpoint_port);
  connection_.close();
  if (!introduction_.by_hand || began_) {
    fail<CommError>(
        "lost the connection to the launcher at {}, which coordinates the job: has it ended, or is "
        "the link down?",
        where);
  }
  const Clock::time_point now = Clock::now();
  // One that has let this launcher in may still accept connections while it ends.
  if (!here_ || (lost_ && now - *lost_ > introduction_.patience.time)) {
    fail<CommError>(
        "the program at {} does not answer as zerorun's launcher does: does another one listen "
        "there, or another version of zerorun? --master_port chooses another port, the same on all "
        "hosts",
        where);
  }
  if (!lost_) {
    lost_ = now;
    Logger().info(
        "lost the connection to the launcher of the first host at {}; waiting for it to be started "
        "again",
        where);
  }
  // Something may accept connections there and close them at once.
  if (const auto code = wait(std::chrono::milliseconds(100))) return code;
  return connect();
}

std::optional<int> NodeLauncher::connect() {
  EndpointWait endpoint(introduction_.endpoint_host, introduction_.endpoint_port,
                        introduction_.patience);
  while (!connection_.open()) {
    connection_ = ControlConnection(endpoint.try_once());
    if (connection_.open()) break;
    endpoint.check_limit();
    if (const auto note = endpoint.note()) Logger().info("{}", *note);
    if (const auto code = wait(std::chrono::milliseconds(100))) return code;
  }
  connection_.send(introduce(introduction_));
  return std::nullopt;
}

std::optional<int> NodeLauncher::wait(std::chrono::milliseconds timeout) {
  bool alone = false;
  PollSet waits;
  waits.add(signals_.get(), POLLIN, [] {});
  waits.add(guardian_.get(), POLLIN, [&alone] { alone = true; });
  waits.add(connection_.fd(), connection_.events(), [] {});
  output_.add_to(waits);
  waits.wait(timeout);
  if (alone) return 1;
  for (const int signal : take_signals(signals_)) {
    if (role_of(signal) != SignalRole::stop) continue;
    // Before the job has begun, one that the user started leaves alone, and may come back.
    const bool alone_here = introduction_.by_hand && !began_;
    if (!connection_.open() || stop_signal_ || alone_here) return 128 + signal;
    // It stays until the ranks of the other hosts have ended, whose time to save this is.
    connection_.send(ControlMessage("stopping").add("signal", signal));
    stop_signal_ = signal;
  }
  return std::nullopt;
}

std::optional<int> NodeLauncher::handle(const ControlMessage& message) {
  if (message.is("denied")) fail<ConfigError>("{}", printable_lines(message.text("why")));
  if (message.is("finish")) {
    const std::string report = message.text("report");
    // A launcher that the coordinator has started speaks through it.
    if (introduction_.by_hand && !report.empty()) {
      Logger().log(LogLevel::error, "the job has ended: {}", printable_lines(report));
    }
    constexpr int64_t kMaxCode = 255;
    return static_cast<int>(message.number("code", 0, kMaxCode));
  }
  try {
    if (message.is("job")) prepare(message);
    if (message.is("begin")) run_ranks(message);
  } catch (const ConfigError& error) {
    connection_.send(ControlMessage("refused").add("why", error.what()));
  } catch (const CommError& error) {  // a name that this host does not know
    connection_.send(ControlMessage("refused").add("why", error.what()));
  }
  return std::nullopt;
}

void NodeLauncher::prepare(const ControlMessage& job) {
  lost_.reset();
  if (!introduction_.by_hand) {
    take_over(job);
    options_ = parse_options(job.all("argument"), inherited_environment());
  }
  here_ =
      look_at_this_host(options_->request.accelerator,
                        is_bundled(options_->program, ProgramSearch::here()), options_->cpus.list);
  std::vector<int> slots = decode_slots(job.text("slots"));
  if (slots.empty()) slots = select_ranks(options_->request, here_->resources).slots;
  connection_.send(ControlMessage("ready")
                       .add("slots", encode_slots(slots))
                       .add("python", python_of(options_->program)));
}

void NodeLauncher::run_ranks(const ControlMessage& begin) {
  const Cluster cluster = decode_cluster(begin);
  const Meeting meeting = decode_meeting(begin);
  if (cluster.node_rank > 0) check_way_to_ranks(meeting);
  began_ = true;
  Job job = plan_job(*options_, *here_, cluster, meeting);
  if (cluster.node_rank == 0) {
    if (!job.note.empty() && job.meeting.restarts == 0) Logger().info("{}", job.note);
    connection_.send(ControlMessage("meeting")
                         .add("master_addr", job.meeting.master_addr)
                         .add("master_port", job.meeting.master_port));
  }
  connection_.send(ControlMessage("started"));
  connection_.listen_anew();
  const RunEnd end =
      Supervisor(std::move(job), guardian_, rank_signal_mask_, output_, &connection_).run();
  if (end.cause == RunEnd::Cause::request) stop_signal_ = end.code - 128;
  connection_.send(ControlMessage("ended")
                       .add("cause", static_cast<int>(end.cause))
                       .add("code", end.code)
                       .add("by_signal", end.by_signal ? 1 : 0)
                       .add("report", end.report)
                       .add("summary", end.summary));
  connection_.listen_anew();
}

int run_node_launcher(const std::vector<std::string>& words) {
  const NodeArguments arguments = NodeArguments::parse(words);
  open_standard_streams();
  FileDescriptor lifeline;
  if (arguments.lifeline) {
    lifeline = FileDescriptor(fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
    const FileDescriptor null_device(open("/dev/null", O_RDONLY | O_CLOEXEC));
    dup2(null_device.get(), STDIN_FILENO);
  }
  return run_guarded(
      [arguments](const FileDescriptor& guardian, const sigset_t& original_mask) {
        Introduction introduction{arguments};
        introduction.token = make_secret();
        // Only who has started this process can read it; see remote_commands().
        const std::string line = fmt::format("{}{}\n", kTokenMark, introduction.token);
        if (write(STDOUT_FILENO, line.data(), line.size()) < 0) return 1;
        const int code = NodeLauncher(std::move(introduction), guardian, original_mask).run();
        kill(getppid(), SIGCONT);  // a guardian that somebody has stopped could not end
        return code;
      },
      std::move(lifeline));
}

}  // namespace zerorun
