#include "comm/collective_limits.h"

#include <algorithm>
#include <functional>

#include "comm/agreement.h"
#include "core/observers.h"

namespace zerorun {

namespace {

constexpr size_t kBytes = size_t{16} << 20;  // of the full tensor
constexpr int kRepetitions = 3;              // the first one meets memory that nobody has touched
constexpr double kLongEnough = 0.1;          // seconds of one collective

}  // namespace

std::array<double, kCollectives> measure_collectives(Communicator& comm, Device& device) {
  std::array<double, kCollectives> found{};
  const int ranks = comm.world_size();
  if (ranks == 1) return found;
  const int64_t shard =
      std::max<int64_t>(1, static_cast<int64_t>(kBytes / size_of(DType::fp32)) / ranks);
  const auto full_nbytes = static_cast<size_t>(shard * ranks) * size_of(DType::fp32);
  const std::optional<Buffer> memory = comm.allocate(full_nbytes, Sharing::per_rank);
  const TensorView full = view_of(*memory, DType::fp32, shard * ranks);
  const TensorView own = full.slice(comm.rank() * shard, shard);
  Stream& stream = device.inline_stream();
  Agreement agreement(comm, stream);
  const auto measure = [&](Collective op, const std::function<Event()>& call) {
    int64_t least_ns = INT64_MAX;
    for (int i = 0; i < kRepetitions; ++i) {
      comm.barrier(stream, "limits of collectives").synchronize();
      const double begin = steady_seconds();
      call().synchronize();
      const double seconds = steady_seconds() - begin;
      // All ranks go on or end together, by the slowest.
      const int64_t ns = agreement.reduce(static_cast<int64_t>(1e9 * seconds), ReduceOp::max);
      least_ns = std::min(least_ns, std::max<int64_t>(1, ns));
      if (static_cast<double>(ns) > 1e9 * kLongEnough) break;
    }
    found[static_cast<size_t>(op)] =
        static_cast<double>(full_nbytes) / static_cast<double>(least_ns) * 1e9;
  };
  measure(Collective::all_gather, [&] {
    return comm.all_gather(own, full, Sync::collective, stream, "limit of all_gather");
  });
  measure(Collective::reduce_scatter, [&] {
    return comm.reduce_scatter(full, own, Output::overwrite, stream, "limit of reduce_scatter");
  });
  measure(Collective::all_reduce, [&] {
    return comm.all_reduce(full, full, ReduceOp::sum, Output::overwrite, stream,
                           "limit of all_reduce");
  });
  return found;
}

}  // namespace zerorun
