#pragma once

#include <chrono>
#include <csignal>
#include <optional>
#include <string>

#include "launcher/control/control_connection.h"
#include "launcher/job.h"
#include "launcher/options.h"
#include "launcher/ranks/supervisor.h"
#include "os/file_descriptor.h"

namespace zerorun {

// How a launcher introduces itself to the coordinator.
struct Introduction {
  std::string endpoint_host;
  uint16_t endpoint_port = 0;
  std::string token;
  int command = -1;                        // see NodeArguments
  std::string index = "0";                 // among the nodes that the command started
  int node_rank = -1;                      // by hand: its number, or -1 for any
  std::chrono::seconds patience{60};       // for the coordinator to be there
  std::optional<LaunchOptions> by_hand{};  // the user's own command on this host
};

// The program and its arguments: what launchers of one job have in common.
std::string program_text(const LaunchOptions& options);

// The time in which the launchers of all hosts have to be there.
std::chrono::seconds join_timeout(const LaunchOptions& options);

// The launcher of one host in a job of several: joins, runs the ranks of this host as often as the
// coordinator says, and tells it how they end.
class NodeLauncher {
 public:
  NodeLauncher(Introduction introduction, const FileDescriptor& guardian,
               const sigset_t& rank_signal_mask);

  // The job's exit code. Throws ConfigError and CommError when the host cannot take part.
  int run();

 private:
  int take_part();
  // The exit code when a signal ends the wait for the first host.
  std::optional<int> connect();
  // Handles one message; the exit code after the last one.
  std::optional<int> handle(const ControlMessage& message);
  void prepare(const ControlMessage& job);
  void run_ranks(const ControlMessage& begin);
  // Until there is something to do: the connection, a signal, the guardian's end.
  std::optional<int> wait(std::chrono::milliseconds timeout);

  Introduction introduction_;
  const FileDescriptor& guardian_;
  sigset_t rank_signal_mask_;
  FileDescriptor signals_;
  OutputQueues output_;
  std::optional<int> stop_signal_;  // that has ended the ranks of this host
  ControlConnection connection_;
  std::optional<LaunchOptions> options_;
  std::optional<ThisHost> here_;
};

// `zerorun --node_launcher ...`, which the coordinator starts. Returns the exit code.
int run_node_launcher(const std::vector<std::string>& words);

}  // namespace zerorun
