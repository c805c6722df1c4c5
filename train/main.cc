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
#include "train/corpus.h"
#include "train/options.h"
#include "train/run.h"
#include "train/run_setup.h"
#include "train/stop_signal.h"
#include "zerorun/zerorun.h"

namespace zerorun::train {
namespace {

constexpr int kFailure = 1;
constexpr int kBadInput = 2;
constexpr int kSignalBase = 128;

int report(const std::exception& error, int code) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return code;
}

bool is_bad_input(const std::exception& error) {
  return dynamic_cast<const ConfigError*>(&error) != nullptr ||
         dynamic_cast<const CheckpointError*>(&error) != nullptr ||
         dynamic_cast<const IoError*>(&error) != nullptr;
}

// The command line, or why it cannot be followed.
struct Parsed {
  CommandLine line;
  std::exception_ptr problem;
};

Parsed parse(const std::vector<std::string>& arguments) {
  Parsed parsed;
  try {
    parsed.line = parse_command_line(arguments);
  } catch (...) {
    parsed.problem = std::current_exception();
  }
  return parsed;
}

// A disk may fail one rank alone; other bad input, and what Agreement::run throws, meets all of
// them.
bool is_this_ranks_own(const std::exception& error) {
  return dynamic_cast<const IoError*>(&error) != nullptr &&
         dynamic_cast<const OnEveryRank*>(&error) == nullptr;
}

// What all ranks have met: rank 0 speaks and is the first to end, since the end of one rank ends
// the job.
int report_once(const std::exception& error, int code, Communicator& comm, Device& device) {
  if (comm.rank() == 0) return report(error, code);
  try {
    comm.barrier(device.inline_stream(), "rank 0 reports an error").synchronize();
  } catch (const CommError&) {
    // Rank 0 is gone: it has spoken.
  }
  return code;
}

// What `body` returns, or the exit code of its error; peers learn of errors that are this rank's
// own. Guards that hold an engine go around its use: an engine that is destroyed by an error ends
// the communicator.
int guarded(Communicator& comm, Device& device, const std::function<int()>& body) {
  try {
    return body();
  } catch (const NumericError& error) {
    return report_once(error, kFailure, comm, device);
  } catch (const DataError& error) {
    comm.abort(error.what());
    return report(error, kBadInput);
  } catch (const std::exception& error) {
    const bool bad_input = is_bad_input(error);
    if (bad_input && !is_this_ranks_own(error)) return report_once(error, kBadInput, comm, device);
    comm.abort(error.what());
    return report(error, bad_input ? kBadInput : kFailure);
  }
}

int run_job(const Parsed& parsed, const RankInfo& rank, Communicator& comm, Device& device,
            StopSignal& stop) {
  RunSetup setup;
  Agreement(comm, device.inline_stream()).run("set-up", [&] {
    if (parsed.problem) std::rethrow_exception(parsed.problem);
    setup = make_run_setup(parsed.line, rank,
                           device.is_host() ? ActivationMemory::host : ActivationMemory::device);
  });
  if (parsed.line.config) {
    const Logger log(rank.rank, rank.world_size);
    for (const std::string& warning : parsed.line.config->warnings) log.warning("{}", warning);
  }
  Run run(setup, comm, device, stop);
  return guarded(comm, device, [&] {
    run.load();
    const int signal = run.train();
    if (signal != 0) return kSignalBase + signal;
    run.finish();
    return 0;
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
    StopSignal stop;                // before any other thread
    std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of write()
    const RankInfo rank = rank_from_environment();
    const Parsed parsed = parse(arguments);
    if (!parsed.line.help.empty()) {
      if (rank.rank == 0) std::fputs(parsed.line.help.c_str(), stdout);
      return 0;
    }
    return run_connected(parsed, rank, stop);
  } catch (const std::exception& error) {
    return report(error, is_bad_input(error) ? kBadInput : kFailure);
  }
}

}  // namespace
}  // namespace zerorun::train

int main(int argc, char** argv) {
  return zerorun::train::run_program(std::vector<std::string>(argv + 1, argv + argc));
}
