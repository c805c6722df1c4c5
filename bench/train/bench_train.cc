// Times of training a GPT-2, each rank a process. Rounds of everything that is compared alternate,
// so that other work on the machine hits all of it; a round takes as long as its slowest rank and
// the least time counts. Prints one JSON object a line.
//
//   bench_train [--ranks 2] [--model gpt2] [--batch 1] [--seq_len 64] [--dtype bf16]
//               [--vocabulary 256] [--layers 12] [--stages 2 3] [--optimizers AdamW Muon]
//               [--overlap] [--rounds 10] [--accelerator cpu] [--offload_optimizer]
//               [--offload_param] [--nvme FOLDER] [--threads 1] [--fast_attention]
//
// "forward and backward" is the model alone, on parameters of its own; "step at stage N" is that
// with an engine: gathers, reductions, norm, clipping, update. "tflops" counts the model's
// products, six operations for each parameter of a matrix and token, and attention's.
//
// "search for a straggler" is what that costs rank 0 in each step of so many ranks, with data and
// computation entered once each; "a wait" is what counting one adds. Clock reads are
// those of a step.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/harness.h"
#include "config/command_line.h"
#include "core/wait_clock.h"
#include "testing/local_parameters.h"
#include "train/model/kernels.h"
#include "train/model/model.h"
#include "zero/timeline/straggler_watch.h"
#include "zerorun/zerorun.h"

namespace zerorun::train {
namespace {

// The least time of a call in nanoseconds.
double least_ns(const std::function<void()>& call) {
  constexpr int kCalls = 2000;
  double least = 1e300;
  for (int round = 0; round < 20; ++round) {
    const int64_t begin = steady_ns();
    for (int i = 0; i < kCalls; ++i) call();
    least = std::min(least, static_cast<double>(steady_ns() - begin) / kCalls);
  }
  return least;
}

void print_search_costs() {
  std::printf("{\"name\": \"a wait\", \"ns\": %.0f}\n", least_ns([] { const PeerWait wait; }));
  for (const size_t ranks : {2, 8, 64, 1024}) {
    int64_t reads = 0;
    PartClock clock([&reads] {
      ++reads;
      return PartClock::read_this_thread();
    });
    StragglerSearch search;
    std::vector<int64_t> words(ranks, encode_shares({0.2, {0.7, 0.1, 0.0, 0.0}}));
    words.back() = encode_shares({0.1, {0.7, 0.2, 0.0, 0.0}});  // one is late: all is looked at
    const auto step = [&] {
      clock.enter(StepPart::data);
      clock.enter(StepPart::compute);
      words[0] = encode_shares(clock.take());
      search.add(words, 0.02);
    };
    const double ns = least_ns(step);
    const int64_t reads_before = reads;
    step();
    std::printf(
        "{\"name\": \"search for a straggler\", \"ranks\": %zu, \"ns\": %.0f, \"clock_reads\": "
        "%lld, \"of_20_ms\": %.6f}\n",
        ranks, ns, static_cast<long long>(reads - reads_before), ns / 20e6);
  }
  std::fflush(stdout);
}

struct Options {  // size: one member for each option of the command line
  int ranks = 2;
  std::string model = "gpt2";
  int64_t batch = 1;
  int64_t seq_len = 64;
  std::string dtype = "bf16";
  int64_t vocabulary = 256;
  Accelerator accelerator = Accelerator::cpu;
  int64_t layers = 0;  // 0: the model's
  std::vector<int> stages = {2, 3};
  std::vector<std::string> optimizers = {"AdamW"};
  bool overlap = false;
  bool offload_optimizer = false;
  bool offload_param = false;
  bool fast_attention = false;
  std::string nvme;
  int rounds = 10;
  int threads = 1;

  DType param_dtype() const { return parse_dtype(dtype); }
  KernelOptions kernel_options() const {
    return {.dtype = param_dtype(), .fast_attention = fast_attention};
  }
  ModelOptions model_options() const { return {batch, seq_len, false}; }
};

GptConfig config_of(const Options& options) {
  GptConfig config = gpt_config(options.model);
  config.vocabulary = options.vocabulary;
  if (options.layers > 0) config.layers = options.layers;
  return config;
}

// Something that is timed.
class Work {
 public:
  virtual ~Work() = default;
  virtual std::string name() const = 0;
  virtual void run(const Batch& batch) = 0;
};

class ForwardBackward final : public Work {
 public:
  ForwardBackward(const Options& options, Device& device)
      : kernels_(make_kernels(device, options.kernel_options())),
        parameters_(parameter_specs(config_of(options)), options.param_dtype(), device),
        model_(config_of(options), options.model_options(), parameters_, device, *kernels_) {
    parameters_.initialize(Initializer(config_of(options), 1));
  }
  std::string name() const override { return "forward and backward"; }
  void run(const Batch& batch) override {
    model_.forward_backward(batch);
    parameters_.end_micro_step();
  }

 private:
  const std::unique_ptr<Kernels> kernels_;
  LocalParameters parameters_;
  Model model_;
};

class Step final : public Work {
 public:
  Step(const Options& options, int stage, const std::string& optimizer, Communicator& comm,
       Device& device)
      : name_("step at stage " + std::to_string(stage) +
              (optimizer == "AdamW" ? "" : " with " + optimizer)),
        kernels_(make_kernels(device, options.kernel_options())),
        engine_(make_engine(options, stage, optimizer, comm, device)),
        parameters_(*engine_),
        model_(config_of(options), options.model_options(), parameters_, device, *kernels_) {
    const Initializer initializer(config_of(options), 1);
    engine_->initialize_parameters([&](ParameterId id, int64_t begin, std::span<float> out) {
      initializer.fill(id, begin, out);
    });
  }
  std::string name() const override { return name_; }
  void run(const Batch& batch) override {
    model_.forward_backward(batch);
    engine_->end_micro_step();
    engine_->step();
  }

 private:
  static std::unique_ptr<Engine> make_engine(const Options& options, int stage,
                                             const std::string& optimizer, Communicator& comm,
                                             Device& device) {
    Config config;
    config.optimizer.type = optimizer;
    config.optimizer.momentum = 0.95;  // of Muon
    config.zero.stage = stage;
    config.zero.overlap_comm = options.overlap;
    const bool on_disk = !options.nvme.empty();
    const OffloadDevice home = on_disk ? OffloadDevice::nvme : OffloadDevice::cpu;
    if (options.offload_optimizer) config.offload.optimizer.device = home;
    if (options.offload_param) config.offload.param.device = home;
    if (on_disk) {
      config.offload.optimizer.nvme_path = config.offload.param.nvme_path = options.nvme;
      config.offload.param.max_in_cpu = 0;
    }
    config.precision.param_dtype = options.param_dtype();
    config.gradient_clipping = 1.0;
    config.batch = {options.batch * comm.world_size(), options.batch, 1};
    return Engine::create(config, device, comm, parameter_specs(config_of(options)),
                          parameter_groups(1e-4F, 0.1F));
  }

  const std::string name_;
  const std::unique_ptr<Kernels> kernels_;
  std::unique_ptr<Engine> engine_;
  EngineParameters parameters_;
  Model model_;
};

// Milliseconds of one round on the slowest rank.
double time_round(Work& work, const Batch& batch, Communicator& comm, Device& device) {
  Stream& stream = device.inline_stream();
  comm.barrier(stream, "start").synchronize();
  const double begin = bench::now();
  work.run(batch);
  stream.synchronize();
  return 1e3 * bench::over_ranks(comm, stream, bench::now() - begin);
}

// Operations of a token's products: forward, and twice that backward.
double operations_of(const Options& options) {
  const GptConfig config = config_of(options);
  const auto width = static_cast<double>(config.width);
  const auto block = width * (4.0 * width + 2.0 * static_cast<double>(config.inner));
  const auto layers = static_cast<double>(config.layers);
  const double matrices = layers * block + width * static_cast<double>(config.vocabulary);
  const double attention = layers * width * static_cast<double>(options.seq_len);
  return 6.0 * (matrices + attention);  // attention: a half of two products over the sequence
}

void run_rounds(const Options& options, Communicator& comm, const std::shared_ptr<Device>& device) {
  std::vector<std::unique_ptr<Work>> works;
  works.push_back(std::make_unique<ForwardBackward>(options, *device));
  for (const int stage : options.stages) {
    for (const std::string& optimizer : options.optimizers) {
      works.push_back(std::make_unique<Step>(options, stage, optimizer, comm, *device));
    }
  }
  std::vector<int32_t> tokens(static_cast<size_t>(options.batch * options.seq_len));
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * 37 % 256);
  std::vector<std::vector<double>> times(works.size());
  for (int round = -1; round < options.rounds; ++round) {  // the first one warms up
    for (size_t i = 0; i < works.size(); ++i) {
      const double taken = time_round(*works[i], {tokens, tokens}, comm, *device);
      if (round >= 0) times[i].push_back(taken);
    }
  }
  if (comm.rank() != 0) return;
  const auto all_tokens = static_cast<double>(std::ssize(tokens) * comm.world_size());
  const double operations = operations_of(options) * static_cast<double>(std::ssize(tokens));
  for (size_t i = 0; i < works.size(); ++i) {
    const double least = *std::min_element(times[i].begin(), times[i].end());
    std::printf(
        "{\"name\": \"%s\", \"ranks\": %d, \"dtype\": \"%s\", \"ms_min\": %.2f, \"ms_median\": "
        "%.2f, \"tokens_per_s\": %.1f, \"tflops\": %.3f, \"ratio\": %.3f}\n",
        works[i]->name().c_str(), comm.world_size(), options.dtype.c_str(), least,
        bench::median(times[i]), all_tokens / least * 1e3, operations / least * 1e-9,
        least / *std::min_element(times[0].begin(), times[0].end()));
  }
}

void run_rank(const RankInfo& info, const Options& options) {
  bench::set_threads(options.threads);
  const auto device = options.accelerator == Accelerator::cuda
                          ? make_cuda_device({.index = info.rank})
                          : make_device(options.accelerator);
  const auto timeout = std::chrono::minutes(2);
  run_rounds(options, *connect(info, timeout, device->is_host() ? nullptr : device), device);
}

}  // namespace
}  // namespace zerorun::train

int main(int argc, char** argv) {
  zerorun::train::Options options;
  CLI::App app("Times of training a GPT-2");
  app.add_option("--ranks", options.ranks)->check(CLI::Range(1, 64));
  app.add_option("--model", options.model);
  app.add_option("--batch", options.batch)->check(CLI::Range(1, 1 << 16));
  app.add_option("--seq_len", options.seq_len)->check(CLI::Range(1, 1 << 16));
  app.add_option("--dtype", options.dtype)->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  app.add_option("--vocabulary", options.vocabulary)->check(CLI::Range(1, 1 << 20));
  zerorun::add_accelerator(app, options.accelerator);
  app.add_option("--layers", options.layers)->check(CLI::Range(1, 1 << 10));
  app.add_option("--optimizers", options.optimizers);
  app.add_option("--stages", options.stages)->check(CLI::Range(0, 3));
  app.add_flag("--overlap", options.overlap, "overlap_comm");
  app.add_flag("--offload_optimizer", options.offload_optimizer, "masters and states on the host");
  app.add_flag("--offload_param", options.offload_param, "parameters of stage 3 on the host");
  app.add_flag("--fast_attention", options.fast_attention, "as of `train`; on GPUs");
  app.add_option("--nvme", options.nvme, "folder of what is offloaded, instead of host memory");
  app.add_option("--rounds", options.rounds)->check(CLI::Range(1, 1000000));
  app.add_option("--threads", options.threads, "of each rank")->check(CLI::Range(1, 1024));
  CLI11_PARSE(app, argc, argv);
  zerorun::train::print_search_costs();
  return zerorun::bench::run_ranks(options.ranks, [&](const zerorun::RankInfo& info) {
    zerorun::train::run_rank(info, options);
  });
}
