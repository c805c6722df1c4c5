#pragma once

#include <chrono>
#include <csignal>
#include <optional>
#include <string>

#include "launcher/control/control_connection.h"
#include "launcher/control/endpoint_wait.h"
#include "launcher/hosts/remote_start.h"
#include "launcher/job.h"
#include "launcher/options.h"
#include "launcher/ranks/supervisor.h"
#include "os/file_descriptor.h"

namespace zerorun {

// How a launcher connects and introduces itself to the coordinator.
struct Introduction : NodeArguments {
  std::string token{};
  int node_rank = -1;                         // started by hand: its number, or -1 for any
  EndpointWait::Limit patience{kSilentWait};  // how long to try to connect
  std::optional<LaunchOptions> by_hand{};     // the user's own command on this host
};

// The program and its arguments as text, which has to be equal for all launchers of a job.
std::string program_text(const LaunchOptions& options);

// How long launchers wait for those of other hosts.
EndpointWait::Limit join_timeout(const LaunchOptions& options);

// The first message of a launcher to the coordinator.
ControlMessage introduce(const Introduction& introduction);

// The launcher of one host in a job of several hosts. It joins, runs the ranks of this host each
// time the coordinator asks for it, and reports how they ended.
class NodeLauncher {
 public:
  NodeLauncher(Introduction introduction, const FileDescriptor& guardian,
               const sigset_t& rank_signal_mask);

  // Returns the job's exit code. Throws ConfigError and CommError if the host cannot take part.
  int run();

 private:
  int take_part();
  // Returns an exit code if a signal ends the wait for the coordinator.
  std::optional<int> connect();
  // Connects anew if the connection was lost before the job began. Throws CommError otherwise.
  std::optional<int> connect_again();
  // Handles one message. Returns the exit code after the last one.
  std::optional<int> handle(const ControlMessage& message);
  void prepare(const ControlMessage& job);
  void run_ranks(const ControlMessage& begin);
  // Waits for the connection, a signal, or the end of the guardian.
  std::optional<int> wait(std::chrono::milliseconds timeout);

  Introduction introduction_;
  const FileDescriptor& guardian_;
  sigset_t rank_signal_mask_;
  FileDescriptor signals_;
  OutputQueues output_;
  std::optional<int> stop_signal_;  // the signal that ended the ranks of this host
  ControlConnection connection_;
  std::optional<LaunchOptions> options_;
  std::optional<ThisHost> here_;  // once the coordinator has let this launcher in
  bool began_ = false;            // ranks have run here
  // When the coordinator was lost, until one lets this launcher in again.
  std::optional<std::chrono::steady_clock::time_point> lost_;
};

// Runs the internal command `zerorun --node_launcher ...`, which the coordinator starts. Returns
// the exit code.
int run_node_launcher(const std::vector<std::string>& words);

}  // namespace zerorun
