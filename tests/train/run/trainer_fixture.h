#pragma once

#include "tests/harness.h"
#include "tests/train/token_file.h"
#include "train/run/trainer.h"

namespace zerorun::train::testing {

struct RankOfRun {
  Trainer& trainer;
  const RunSetup& setup;
  Communicator& comm;

  void train(int steps) const {
    trainer.initialize();
    for (int i = 0; i < steps; ++i) trainer.step(0);
  }
  uint64_t hash() const { return trainer.engine().states().parameter_hash(); }
};

// A text, and a model small enough to train on it.
struct TrainerTest : ::testing::Test {
  TrainerTest() {
    std::string text;
    for (int i = 0; i < 4000; ++i) text += static_cast<char>('a' + i * i % 23);
    data_ = folder_.write("text", text);
    model_ = folder_.write("model.json", R"({
        "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16, "n_inner": 32})");
  }

  // A config of this stage with more keys in its block, and more blocks.
  std::string config(int stage, const std::string& zero = "",
                     const std::string& blocks = "") const {
    return folder_.write("config.json", fmt::format(R"({{
        "train_micro_batch_size_per_gpu": 2, "zero_optimization": {{"stage": {}{}}},
        "optimizer": {{"type": "AdamW", "params": {{"lr": 0.01, "weight_decay": 0.1}}}}{}}})",
                                                    stage, zero, blocks));
  }

  RunSetup setup_of(const std::vector<std::string>& more, const RankInfo& rank = {}) const {
    std::vector<std::string> options = {"--data",    data_, "--model", model_,
                                        "--seq_len", "8",   "--seed",  "3"};
    options.insert(options.end(), more.begin(), more.end());
    return make_run_setup(parse_command_line(options), rank);
  }

  // Calls body(rank of the run) on all ranks, with a trainer that is set up from these options.
  template <typename Body>
  void run(int world_size, const std::vector<std::string>& options, const Body& body) const {
    zerorun::testing::run_ranks(world_size, [&](Communicator& comm) {
      const RunSetup setup =
          setup_of(options, {.rank = comm.rank(), .world_size = comm.world_size()});
      const auto device = make_cpu_device();
      Trainer trainer(setup, comm, *device);
      body(RankOfRun{trainer, setup, comm});
    });
  }
  // What that gives on rank 0.
  template <typename Body>
  auto result_of(int world_size, const std::vector<std::string>& options, const Body& body) const {
    std::invoke_result_t<Body, const RankOfRun&> result{};
    run(world_size, options, [&](const RankOfRun& rank) {
      auto own = body(rank);
      if (rank.comm.rank() == 0) result = std::move(own);
    });
    return result;
  }

  uint64_t hash_after(int steps, int world_size, const std::vector<std::string>& options) const {
    return result_of(world_size, options, [&](const RankOfRun& rank) {
      rank.train(steps);
      return rank.hash();
    });
  }

  Scratch folder_;
  std::string data_;
  std::string model_;
};

}  // namespace zerorun::train::testing
