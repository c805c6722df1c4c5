#pragma once

#ifdef _OPENMP
#include <omp.h>
#endif
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <list>
#include <vector>

#include "os/socket.h"
#include "zerorun/communicator.h"
#include "zerorun/device.h"

// What the benchmarks share: times, tensors, and ranks that are processes.
namespace zerorun::bench {

inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// CPU time of all threads of this process, in the kernel too.
inline double processor_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto of = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return of(usage.ru_utime) + of(usage.ru_stime);
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

inline void set_threads([[maybe_unused]] int threads) {
#ifdef _OPENMP
  omp_set_num_threads(threads);
#endif
}

// Tensors of a device, for as long as this exists.
class Tensors {
 public:
  explicit Tensors(Device& device) : device_(&device) {}
  TensorView make(DType dtype, int64_t numel, float value) {
    buffers_.push_back(
        device_->allocate(static_cast<size_t>(numel) * size_of(dtype), MemoryCategory::other));
    const TensorView view = view_of(buffers_.back(), dtype, numel);
    device_->fill(device_->inline_stream(), view, value);
    return view;
  }

 private:
  Device* device_;
  std::list<Buffer> buffers_;
};

// `seconds` of the slowest rank, or of all ranks together.
inline double over_ranks(Communicator& comm, Stream& stream, double seconds,
                         ReduceOp op = ReduceOp::max) {
  auto value = static_cast<float>(seconds);
  const TensorView view = view_of(std::span(&value, 1));
  comm.all_reduce(view, view, op, Output::overwrite, stream, "time").synchronize();
  return static_cast<double>(value);
}

// Calls body(rank) in a process for each rank of this host. Returns the exit code of main().
inline int run_ranks(int ranks, const std::function<void(const RankInfo&)>& body) {
  RankInfo info;
  info.world_size = info.local_world_size = ranks;
  info.master_port = reserve_port("127.0.0.1", 0).port;
  for (int rank = 0; rank < ranks; ++rank) {
    if (fork() != 0) continue;
    info.rank = info.local_rank = rank;
    int code = EXIT_SUCCESS;
    try {
      body(info);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      code = EXIT_FAILURE;
    }
    std::fflush(stdout);
    std::_Exit(code);
  }
  bool good = true;
  int status = 0;
  while (wait(&status) > 0) good &= status == 0;
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace zerorun::bench
