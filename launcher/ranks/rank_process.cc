#include "launcher/ranks/rank_process.h"

#include <unistd.h>

#include <memory>
#include <utility>

#include "core/check.h"
#include "launcher/ranks/process.h"

namespace zerorun {

namespace {

// The supervisor's end of a new pipe goes to `rank`; returns the rank's end.
FileDescriptor add_stream(RankProcess& rank, OutputRoute route) {
  Pipe pipe = make_pipe();
  rank.streams.emplace_back(std::move(pipe.read), std::move(route));
  return std::move(pipe.write);
}

}  // namespace

RankProcess start_rank(const Job& job, int number, const RankSurroundings& surroundings) {
  RankProcess rank;
  const RankPlan& plan = job.ranks[static_cast<size_t>(number)];
  OutputRoute out;
  OutputRoute err;
  const RankStreams& streams = plan.streams;
  const int global = job.cluster.first_rank() + number;
  if (streams.output.logged || streams.error.logged) {
    const auto log = std::make_shared<LogFile>(fmt::format("{}/rank{}.log", job.log_dir, global));
    if (streams.output.logged) out.log = log;
    if (streams.error.logged) err.log = log;
  }
  if (streams.output.shown) out.queue = &surroundings.output;
  if (streams.error.shown) err.queue = &surroundings.errors;
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
  request.environment = environment_block(rank_environment(job.inherited, plan.variables));
  request.cpus = plan.cpus;
  request.standard_input = global == 0 ? -1 : surroundings.null_device.get();
  request.standard_output = out_end.get();
  request.standard_error = err_end.get();
  if (number == 0 && job.rendezvous) request.kept_open = job.rendezvous->get();
  request.signal_mask = surroundings.signal_mask;
  rank.pid = spawn(request, surroundings.failure);
  return rank;
}

}  // namespace zerorun
