// Collectives of shared memory between the ranks of one host, each a process of one thread. Prints
// one JSON object a line: the least and the median time over the repeats, a repeat taking as long
// as its slowest rank, and the bytes of the full tensor over the least time.
//
//   bench_comm [--ranks 2] [--mib 163] [--repeats 20]
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "bench/harness.h"
#include "device/cpu/cpu_stream.h"

namespace zerorun::bench {
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
    call();
    std::vector<double> seconds;
    for (int repeat = 0; repeat < options_.repeats; ++repeat) {
      communicator_.barrier(*stream_, "start");
      const double begin = now();
      for (int i = 0; i < calls; ++i) call();
      seconds.push_back(over_ranks(communicator_, *stream_, now() - begin) / calls);
    }
    if (communicator_.rank() != 0) return;
    const double least = *std::min_element(seconds.begin(), seconds.end());
    std::printf(
        "{\"name\": \"%s\", \"ranks\": %d, \"bytes\": %zu, \"us_min\": %.2f, \"us_median\": %.2f, "
        "\"gb_per_s\": %.3f}\n",
        name, options_.ranks, nbytes, 1e6 * least, 1e6 * median(seconds),
        static_cast<double>(nbytes) / least / 1e9);
    std::fflush(stdout);
  }

  Communicator& communicator_;
  const Options options_;
  const int64_t numel_;
  const std::unique_ptr<CpuStream> stream_ = make_inline_stream();
};

}  // namespace
}  // namespace zerorun::bench

int main(int argc, char** argv) {
  using namespace zerorun;  // NOLINT(google-build-using-namespace)
  bench::Options options;
  CLI::App app("Collectives of shared memory between processes of one host");
  app.add_option("--ranks", options.ranks)->check(CLI::Range(1, 64));
  app.add_option("--mib", options.mib, "size of the full tensor")->check(CLI::PositiveNumber);
  app.add_option("--repeats", options.repeats)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  return bench::run_ranks(options.ranks, [&](const RankInfo& info) {
    bench::set_threads(1);
    bench::Bench(*connect(info), options).run();
  });
}
