// Collectives of shared memory between the ranks of one host, each a process of one thread. Prints
// one JSON object a line: the least and the median time over the repeats, a repeat taking as long
// as its slowest rank, and the bytes of the full tensor over the least time.
//
//   bench_comm [--ranks 2] [--mib 163] [--repeats 20]
#ifdef _OPENMP
#include <omp.h>
#endif
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "device/cpu/cpu_stream.h"
#include "os/socket.h"
#include "zerorun/communicator.h"

namespace zerorun {
namespace {

struct Options {
  int ranks = 2;
  int64_t mib = 163;
  int repeats = 20;
};

class Bench {
 public:
  Bench(Communicator& communicator, const Options& options)
      : communicator_(communicator),
        options_(options),
        numel_(options.mib * (int64_t{1} << 20) / 2 / options.ranks * options.ranks) {}

  void run() {
    const size_t nbytes = static_cast<size_t>(numel_) * 2;
    const Buffer full = *communicator_.allocate(nbytes, Sharing::per_rank);
    const Buffer shared = *communicator_.allocate(nbytes, Sharing::per_host);
    const int64_t part = numel_ / options_.ranks;
    const auto rank = communicator_.rank();
    std::vector<float> shard(static_cast<size_t>(part));
    const TensorView wide = view_of(std::span(shard));
    const TensorView in = view_of(full, DType::bf16, numel_);
    const TensorView own = in.slice(rank * part, part);
    std::fill_n(in.as<Bf16>(), numel_, to_bf16(1.0F));

    measure("reduce_scatter bf16 to fp32", nbytes, 1, [&] {
      communicator_.reduce_scatter(in, wide, Output::overwrite, *stream_, "gradients");
    });
    measure("reduce_scatter bf16 in place", nbytes, 1, [&] {
      communicator_.reduce_scatter(in, own, Output::overwrite, *stream_, "gradients");
    });
    measure("all_gather bf16", nbytes, 1,
            [&] { communicator_.all_gather(own, in, Sync::collective, *stream_, "parameters"); });
    measure("all_reduce bf16 in place", nbytes, 1, [&] {
      communicator_.all_reduce(in, in, ReduceOp::sum, Output::overwrite, *stream_, "gradients");
    });
    const TensorView once = view_of(shared, DType::bf16, numel_);
    measure("all_gather bf16, one copy for all ranks", nbytes, 100, [&] {
      communicator_.all_gather(once.slice(rank * part, part), once, Sync::collective, *stream_, "");
    });
    std::vector<float> norm(2);
    const TensorView small = view_of(std::span(norm));
    measure("all_reduce of 8 bytes", small.nbytes(), 10000, [&] {
      communicator_.all_reduce(small, small, ReduceOp::max, Output::overwrite, *stream_, "norm");
    });
  }

 private:
  void measure(const char* name, size_t nbytes, int calls, const std::function<void()>& call) {
    using Clock = std::chrono::steady_clock;
    call();
    std::vector<float> seconds;
    for (int repeat = 0; repeat < options_.repeats; ++repeat) {
      communicator_.barrier(*stream_, "start");
      const Clock::time_point begin = Clock::now();
      for (int i = 0; i < calls; ++i) call();
      float taken = std::chrono::duration<float>(Clock::now() - begin).count();
      const TensorView slowest{reinterpret_cast<std::byte*>(&taken), 1, DType::fp32};
      communicator_.all_reduce(slowest, slowest, ReduceOp::max, Output::overwrite, *stream_, "");
      seconds.push_back(taken / static_cast<float>(calls));
    }
    if (communicator_.rank() != 0) return;
    std::sort(seconds.begin(), seconds.end());
    std::printf(
        "{\"name\": \"%s\", \"ranks\": %d, \"bytes\": %zu, \"us_min\": %.2f, \"us_median\": %.2f, "
        "\"gb_per_s\": %.3f}\n",
        name, options_.ranks, nbytes, 1e6 * static_cast<double>(seconds.front()),
        1e6 * static_cast<double>(seconds[seconds.size() / 2]),
        static_cast<double>(nbytes) / static_cast<double>(seconds.front()) / 1e9);
    std::fflush(stdout);
  }

  Communicator& communicator_;
  const Options options_;
  const int64_t numel_;
  const std::unique_ptr<CpuStream> stream_ = make_inline_stream();
};

int run_rank(int rank, uint16_t port, const Options& options) {
  try {
#ifdef _OPENMP
    omp_set_num_threads(1);
#endif
    RankInfo info;
    info.rank = info.local_rank = rank;
    info.world_size = info.local_world_size = options.ranks;
    info.master_port = port;
    const auto communicator = connect(info);
    Bench(*communicator, options).run();
    return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    return EXIT_FAILURE;
  }
}

int run_all(const Options& options) {
  const uint16_t port = reserve_port("127.0.0.1", 0).port;
  for (int rank = 0; rank < options.ranks; ++rank) {
    if (fork() == 0) std::_Exit(run_rank(rank, port, options));
  }
  bool good = true;
  int status = 0;
  while (wait(&status) > 0) good &= status == 0;
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace zerorun

int main(int argc, char** argv) {
  zerorun::Options options;
  CLI::App app("Collectives of shared memory between processes of one host");
  app.add_option("--ranks", options.ranks)->check(CLI::Range(1, 64));
  app.add_option("--mib", options.mib, "size of the full tensor")->check(CLI::PositiveNumber);
  app.add_option("--repeats", options.repeats)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  return zerorun::run_all(options);
}
