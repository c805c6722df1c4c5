// One rank of a job on several hosts: all_reduce of fp32, by turns with zerorun and with Gloo's own
// algorithm among all ranks, over the same links. Rank 0 prints one JSON object: the least time of
// each, that of all their processors, and the ratios. bench/comm/hosts.py starts the ranks.
//
//   bench_links STORE_FOLDER INTERFACE_ADDRESS [--mib 64] [--repeats 10]
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "bench/harness.h"
#include "device/cpu/cpu_stream.h"

namespace zerorun::bench {
namespace {

struct Options {
  std::string folder;
  std::string address;
  int64_t mib = 64;
  int repeats = 10;
};

class Bench {
 public:
  Bench(const RankInfo& info, const Options& options)
      : communicator_(connect(info)), options_(options) {
    auto context = std::make_shared<gloo::rendezvous::Context>(info.rank, info.world_size);
    gloo::rendezvous::FileStore store(options.folder);
    gloo::transport::tcp::attr place(options.address.c_str());
    auto device = gloo::transport::tcp::CreateDevice(place);
    context->connectFullMesh(store, device);
    context_ = std::move(context);
  }

  void run() {
    const int64_t numel = options_.mib * (int64_t{1} << 20) / 4;
    const Buffer memory =
        *communicator_->allocate(static_cast<size_t>(numel) * 4, Sharing::per_rank);
    const TensorView values = view_of(memory, DType::fp32, numel);
    const auto ours = [&] {
      communicator_->all_reduce(values, values, ReduceOp::sum, Output::overwrite, *stream_, "all");
    };
    const auto theirs = [&] {
      gloo::AllreduceOptions all_reduce(context_);
      all_reduce.setOutput(values.as<float>(), static_cast<size_t>(numel));
      all_reduce.setReduceFunction(
          static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
      gloo::allreduce(all_reduce);
    };
    Taken zerorun;
    Taken gloo;
    for (int repeat = 0; repeat <= options_.repeats; ++repeat) {
      std::fill_n(values.as<float>(), numel, 1.0F);
      const Taken first = measure(ours);
      const Taken second = measure(theirs);
      if (repeat == 0) continue;  // connections grow their windows
      zerorun.keep_least(first);
      gloo.keep_least(second);
    }
    if (communicator_->rank() != 0) return;
    std::printf(
        "{\"transport\": \"%s\", \"ranks\": %d, \"ranks_per_host\": %d, \"mib\": %lld, "
        "\"zerorun_ms\": %.2f, \"gloo_ms\": %.2f, \"ratio\": %.2f, "
        "\"zerorun_cpu_ms\": %.2f, \"gloo_cpu_ms\": %.2f, \"cpu_ratio\": %.2f}\n",
        communicator_->transport().c_str(), communicator_->world_size(),
        communicator_->local_world_size(), static_cast<long long>(options_.mib),
        1e3 * zerorun.seconds, 1e3 * gloo.seconds, gloo.seconds / zerorun.seconds,
        1e3 * zerorun.cpu_seconds, 1e3 * gloo.cpu_seconds, gloo.cpu_seconds / zerorun.cpu_seconds);
  }

 private:
  struct Taken {
    double seconds = 1e9;      // of the slowest rank
    double cpu_seconds = 1e9;  // of all ranks; where a machine has other work it says more

    void keep_least(const Taken& other) {
      seconds = std::min(seconds, other.seconds);
      cpu_seconds = std::min(cpu_seconds, other.cpu_seconds);
    }
  };

  Taken measure(const std::function<void()>& call) {
    communicator_->barrier(*stream_, "start");
    const double cpu = processor_seconds();
    const double begin = now();
    call();
    const Taken own{now() - begin, processor_seconds() - cpu};
    return {over_ranks(*communicator_, *stream_, own.seconds),
            over_ranks(*communicator_, *stream_, own.cpu_seconds, ReduceOp::sum)};
  }

  const std::shared_ptr<Communicator> communicator_;
  const Options options_;
  const std::unique_ptr<CpuStream> stream_ = make_inline_stream();
  std::shared_ptr<gloo::Context> context_;
};

}  // namespace
}  // namespace zerorun::bench

int main(int argc, char** argv) {
  zerorun::bench::Options options;
  CLI::App app("all_reduce between hosts, beside Gloo's own");
  app.add_option("folder", options.folder, "where Gloo's ranks meet")->required();
  app.add_option("address", options.address, "this host's, or an interface")->required();
  app.add_option("--mib", options.mib)->check(CLI::PositiveNumber);
  app.add_option("--repeats", options.repeats)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    zerorun::bench::Bench(zerorun::rank_from_environment(), options).run();
    return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return EXIT_FAILURE;
  }
}
