#pragma once

#include "tests/common.h"
#include "tests/harness.h"
#include "tests/train/token_file.h"
#include "train/run/trainer.h"

namespace zerorun::train::testing {

inline constexpr const char* kModel = R"({
  "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16, "n_inner": 32})";

// A text, and a model small enough to train on it.
class TextTest : public ::testing::Test {
 protected:
  TextTest() {
    std::string text;
    for (int i = 0; i < 4000; ++i) text += static_cast<char>('a' + i * i % 23);
    data_ = folder_.write("text", text);
    model_ = folder_.write("model.json", kModel);
  }

  RunSetup setup_of(const std::vector<std::string>& more, const RankInfo& rank = {}) const {
    std::vector<std::string> options = {"--data",    data_, "--model", model_,
                                        "--seq_len", "8",   "--seed",  "3"};
    options.insert(options.end(), more.begin(), more.end());
    return make_run_setup(parse_command_line(options), rank);
  }

  // Runs `body` on all ranks, with a trainer that is set up from these options.
  void run(int world_size, const std::vector<std::string>& options,
           const std::function<void(Trainer&, const RunSetup&, Communicator&)>& body) const {
    zerorun::testing::run_ranks(world_size, [&](Communicator& comm) {
      const RunSetup setup =
          setup_of(options, {.rank = comm.rank(), .world_size = comm.world_size()});
      const auto device = make_cpu_device();
      Trainer trainer(setup, comm, *device);
      body(trainer, setup, comm);
    });
  }

  Scratch folder_;
  std::string data_;
  std::string model_;
};

class TrainerTest : public TextTest {
 protected:
  std::string config(int stage, const char* more = "") const {
    return folder_.write("config.json", fmt::format(R"({{
        "train_micro_batch_size_per_gpu": 2, "zero_optimization": {{"stage": {}{}}},
        "optimizer": {{"type": "AdamW", "params": {{"lr": 0.01, "weight_decay": 0.1}}}}}})",
                                                    stage, more));
  }

  uint64_t hash_after(int steps, int world_size, const std::vector<std::string>& options) const {
    uint64_t hash = 0;
    run(world_size, options, [&](Trainer& trainer, const RunSetup&, Communicator& comm) {
      trainer.initialize();
      for (int i = 0; i < steps; ++i) trainer.step(0);
      const uint64_t own = trainer.engine().states().parameter_hash();
      if (comm.rank() == 0) hash = own;
    });
    return hash;
  }
};

}  // namespace zerorun::train::testing
