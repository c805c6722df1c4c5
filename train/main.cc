// The program `train`: see `train --help`.

#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/agreement.h"
#include "core/log.h"
#include "core/printable.h"
#include "os/open_file.h"
#include "train/run/run.h"
#include "zerorun/zerorun.h"

namespace zerorun::train {
namespace {

// `train --help` explains them.
constexpr int kFailure = 1;
constexpr int kBadInput = 2;
constexpr int kSignalBase = 128;

// Prints the error, unless this is not the rank that does; returns the exit code.
int report(const std::exception& error, bool prints = true) {
  if (prints) std::fprintf(stderr, "error: %s\n", printable_lines(error.what()).c_str());
  return dynamic_cast<const ConfigError*>(&error) != nullptr ? kBadInput : kFailure;
}

// The parsed command line, or the error.
struct Parsed {
  CommandLine line;
  std::exception_ptr problem;
};

Parsed parse(const std::vector<std::string>& arguments) {
  try {
    return {parse_command_line(arguments), nullptr};
  } catch (...) {
    return {{}, std::current_exception()};
  }
}

// True if the error occurs on all ranks: errors about input, model or checkpoint, and errors that
// Agreement::run throws. A disk may fail on a single rank.
bool is_on_every_rank(const std::exception& error) {
  return dynamic_cast<const OnEveryRank*>(&error) != nullptr ||
         dynamic_cast<const ConfigError*>(&error) != nullptr ||
         dynamic_cast<const CheckpointError*>(&error) != nullptr ||
         dynamic_cast<const NumericError*>(&error) != nullptr;
}

// Returns the result of `body`, or the exit code of its error. If an error occurs on all ranks,
// rank 0 prints it and exits first, because the exit of one rank ends the job; other errors are
// sent to the peers. An engine that `body` uses must outlive the call, because an engine that is
// destroyed by an error aborts the communicator.
int guarded(Communicator& comm, Device& device, const std::function<int()>& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    const bool shared = is_on_every_rank(error);
    if (!shared) comm.abort(error.what());
    if (shared && comm.rank() != 0) {
      try {
        comm.barrier(device.inline_stream(), "rank 0 reports an error").synchronize();
      } catch (const CommError&) {
        // Rank 0 has exited and printed the error.
      }
    }
    return report(error, !shared || comm.rank() == 0);
  }
}

// A restarted run continues from its own last checkpoint, whatever it started from originally. Rank
// 0 decides for all ranks.
CommandLine after_restart(const Parsed& parsed, Agreement& agreement) {
  bool resumes = false;
  agreement.run("restart", [&] {
    if (parsed.problem) std::rethrow_exception(parsed.problem);
    if (agreement.rank() == 0) {
      resumes = continues_after_restart(parsed.line.options, job_name());
    }
  });
  CommandLine line = parsed.line;
  if (agreement.broadcast(resumes ? 1 : 0) == 0) return line;
  line.options.resume = line.options.save;
  line.options.init.clear();
  return line;
}

int run_job(const Parsed& parsed, const RankInfo& rank, Communicator& comm, Device& device,
            StopSignal& stop) {
  RunSetup setup;
  Agreement agreement(comm, device.inline_stream());
  const CommandLine line = after_restart(parsed, agreement);
  agreement.run("set-up", [&] { setup = make_run_setup(line, rank, device.is_host()); });
  if (line.config) {
    const Logger log(rank.rank, rank.world_size);
    for (const std::string& warning : line.config->warnings) log.warning("{}", warning);
  }
  const std::function<int()> run = prepare_run(setup, comm, device, stop);
  return guarded(comm, device, [&] {
    const int signal = run();
    return signal == 0 ? 0 : kSignalBase + signal;
  });
}

int run_connected(const Parsed& parsed, const RankInfo& rank, StopSignal& stop) {
  const Config config = parsed.line.config ? parsed.line.config->config : Config();
  const auto timeout = std::chrono::milliseconds(static_cast<int64_t>(config.comm_timeout_s * 1e3));
  const std::shared_ptr<Device> device = make_device(parsed.line.options.accelerator);
  const std::shared_ptr<Communicator> comm =
      connect(rank, timeout, device->is_host() ? nullptr : device);
  return guarded(*comm, *device, [&] { return run_job(parsed, rank, *comm, *device, stop); });
}

int run_program(const std::vector<std::string>& arguments) {
  try {
    open_standard_streams();        // so that no file of the run gets what is printed
    StopSignal stop;                // must exist before any other thread
    std::signal(SIGXFSZ, SIG_IGN);  // write() reports an error if a file may not grow
    const RankInfo rank = rank_from_environment();
    const Parsed parsed = parse(arguments);
    if (!parsed.line.help.empty()) {
      if (rank.rank == 0) std::fputs(parsed.line.help.c_str(), stdout);
      return 0;
    }
    return run_connected(parsed, rank, stop);
  } catch (const std::exception& error) {
    return report(error);
  }
}

}  // namespace
}  // namespace zerorun::train

int main(int argc, char** argv) {
  return zerorun::train::run_program(std::vector<std::string>(argv + 1, argv + argc));
}
