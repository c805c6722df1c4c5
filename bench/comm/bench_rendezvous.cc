// The null program: ranks meet, and end. The launcher's time is that of the rendezvous:
//
//   time zerorun --accelerator cpu --num_gpus 1000 build/release/bench/comm/bench_rendezvous
//
// Rank 0 prints how long it took from its own start until all had come. With --threads N the ranks
// are threads of one process, each with a connection of its own to the same store: what is left is
// the rendezvous without the start of N processes.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "device/cpu/cpu_stream.h"
#include "zerorun/communicator.h"

namespace zerorun {
namespace {

using Clock = std::chrono::steady_clock;

void print(int ranks, Clock::time_point start) {
  std::printf("{\"ranks\": %d, \"seconds\": %.2f}\n", ranks,
              std::chrono::duration<double>(Clock::now() - start).count());
}

void meet(Communicator& communicator) {
  const auto stream = make_inline_stream();
  communicator.barrier(*stream, "all have come").synchronize();
}

void run_threads(int ranks) {
  const Clock::time_point start = Clock::now();
  const auto store = make_tcp_store({.serve = true, .secret = "of this benchmark"});
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      CommunicatorOptions options;
      options.rank = rank;
      options.world_size = ranks;
      options.store =
          rank == 0 ? store
                    : make_tcp_store({.port = bound_port(*store), .secret = "of this benchmark"});
      meet(*make_communicator(options));
    });
  }
  for (std::thread& thread : threads) thread.join();
  print(ranks, start);
}

void run_rank() {
  const Clock::time_point start = Clock::now();
  const auto communicator = connect(rank_from_environment());
  meet(*communicator);
  if (communicator->rank() == 0) print(communicator->world_size(), start);
}

}  // namespace
}  // namespace zerorun

int main(int argc, char** argv) {
  try {
    if (argc == 3 && std::string_view(argv[1]) == "--threads") {
      zerorun::run_threads(std::stoi(argv[2]));
    } else {
      zerorun::run_rank();
    }
    return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return EXIT_FAILURE;
  }
}
