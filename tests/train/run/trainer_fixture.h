#pragma once

#include "tests/common.h"
#include "tests/harness.h"
#include "tests/train/temporary_folder.h"
#include "train/run/trainer.h"

namespace zerorun::train::testing {

inline constexpr const char* kModel = R"({
  "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16, "n_inner": 32})";

class TrainerTest : public ::testing::Test {
 protected:
  TrainerTest() {
    std::string text;
    for (int i = 0; i < 4000; ++i) text += static_cast<char>('a' + i * i % 23);
    data_ = folder_.write("text", text);
    model_ = folder_.write("model.json", kModel);
  }

  std::string config(int stage, const char* more = "") const {
    return folder_.write("config.json", fmt::format(R"({{
        "train_micro_batch_size_per_gpu": 2, "zero_optimization": {{"stage": {}{}}},
        "optimizer": {{"type": "AdamW", "params": {{"lr": 0.01, "weight_decay": 0.1}}}}}})",
                                                    stage, more));
  }

  // Runs `body` on all ranks, with a trainer that is set up from these options.
  void run(int world_size, std::vector<std::string> options,
           const std::function<void(Trainer&, const RunSetup&, Communicator&)>& body) const {
    options.insert(options.begin(),
                   {"--data", data_, "--model", model_, "--seq_len", "8", "--seed", "3"});
    zerorun::testing::run_ranks(world_size, [&](Communicator& comm) {
      const RunSetup setup = make_run_setup(parse_command_line(options),
                                            {.rank = comm.rank(), .world_size = comm.world_size()});
      const auto device = make_cpu_device();
      Trainer trainer(setup, comm, *device);
      body(trainer, setup, comm);
    });
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

  TemporaryFolder folder_;
  std::string data_;
  std::string model_;
};

}  // namespace zerorun::train::testing
