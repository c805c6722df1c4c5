#include "train/run/trainer.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <functional>

#include "tests/harness.h"
#include "tests/train/temporary_folder.h"
#include "train/model/activations.h"
#include "train/run/make_kernels.h"
#include "train/run/run_folder.h"

namespace zerorun::train::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

constexpr const char* kModel = R"({
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

TEST_F(TrainerTest, EveryStageGivesTheSameParameters) {
  for (const char* dtype : {"fp32", "bf16"}) {
    const uint64_t expected = hash_after(4, 2, {"--dtype", dtype, "--config", config(0)});
    for (int stage : {1, 2, 3}) {
      EXPECT_EQ(hash_after(4, 2, {"--dtype", dtype, "--config", config(stage)}), expected);
      EXPECT_EQ(hash_after(4, 2,
                           {"--dtype", dtype, "--config",
                            config(stage, R"(, "reduce_bucket_size": 700, "overlap_comm": true,
                                            "stage3_param_persistence_threshold": 40)")}),
                expected);
    }
  }
}

TEST_F(TrainerTest, RecomputingGivesTheSameParameters) {
  EXPECT_EQ(hash_after(3, 2, {"--config", config(3), "--recompute"}),
            hash_after(3, 2, {"--config", config(3)}));
}

TEST_F(TrainerTest, InitialParametersDependOnTheSeedOnly) {
  const uint64_t expected = hash_after(0, 1, {"--config", config(0)});
  EXPECT_EQ(hash_after(0, 3, {"--config", config(3)}), expected);
  EXPECT_NE(hash_after(0, 1, {"--config", config(0), "--seed", "4"}), expected);
}

TEST_F(TrainerTest, TheLossFallsAndIsTheSameOnAllRanks) {
  std::vector<double> last(2);
  double first = 0.0;
  run(2, {"--config", config(2)}, [&](Trainer& trainer, const RunSetup&, Communicator& comm) {
    trainer.initialize();
    for (int i = 0; i < 60; ++i) {
      const StepReport report = trainer.step(0).report;
      if (i == 0 && comm.rank() == 0) first = report.loss;
      last[static_cast<size_t>(comm.rank())] = report.loss;
      EXPECT_EQ(report.step, i + 1);
      EXPECT_FALSE(report.skipped);
    }
  });
  EXPECT_NEAR(first, std::log(256.0), 0.3);
  EXPECT_LT(last[0], 0.75 * first);
  EXPECT_EQ(last[0], last[1]);
}

TEST_F(TrainerTest, EvaluationDoesNotDependOnTheRanks) {
  const auto evaluate = [&](int world_size) {
    double loss = 0.0;
    run(world_size, {"--config", config(3)},
        [&](Trainer& trainer, const RunSetup&, Communicator& comm) {
          trainer.initialize();
          const double own = trainer.evaluate();
          if (comm.rank() == 0) loss = own;
        });
    return loss;
  };
  const double expected = evaluate(1);
  EXPECT_NEAR(expected, std::log(256.0), 0.3);
  EXPECT_NEAR(evaluate(2), expected, 1e-5);
  EXPECT_NEAR(evaluate(3), expected, 1e-5);
}

TEST_F(TrainerTest, ASignalOnOneRankStopsAll) {
  run(2, {"--config", config(2)}, [&](Trainer& trainer, const RunSetup&, Communicator& comm) {
    trainer.initialize();
    EXPECT_EQ(trainer.step(0).signal, 0);
    EXPECT_EQ(trainer.step(comm.rank() == 1 ? SIGINT : 0).signal, SIGINT);
    EXPECT_EQ(trainer.step(comm.rank() == 0 ? SIGTERM : SIGINT).signal, SIGTERM);
  });
}

TEST_F(TrainerTest, AResumedRunContinuesBitForBit) {
  const std::vector<std::string> options = {"--config", config(3), "--dtype", "bf16"};
  const uint64_t expected = hash_after(5, 2, options);
  const std::string folder = folder_.path("run");
  run(2, options, [&](Trainer& trainer, const RunSetup& setup, Communicator& comm) {
    trainer.initialize();
    for (int i = 0; i < 3; ++i) trainer.step(0);
    save_run(folder, setup, trainer, comm);
  });
  run(2, options, [&](Trainer& trainer, const RunSetup& setup, Communicator& comm) {
    EXPECT_EQ(resume_run(folder, setup, trainer, comm), "");
    EXPECT_EQ(trainer.position().step, 3);
    EXPECT_EQ(trainer.position().samples, 12);
    trainer.step(0);
    trainer.step(0);
    EXPECT_EQ(trainer.engine().states().parameter_hash(), expected);
  });
  run(2, {"--config", config(3), "--dtype", "bf16", "--seed", "9"},
      [&](Trainer& trainer, const RunSetup& setup, Communicator& comm) {
        EXPECT_THAT(resume_run(folder, setup, trainer, comm), HasSubstr("seed was 3 and is 9"));
      });
}

// Lamb keeps states of the same names as AdamW, and Adam with L2 the very same ones.
TEST_F(TrainerTest, ResumingWithAnotherOptimizerIsAnErrorThatNamesBoth) {
  const auto write = [&](const char* name, const char* optimizer) {
    return folder_.write(name,
                         fmt::format(R"({{"train_batch_size": 4, "optimizer": {}}})", optimizer));
  };
  const std::string adamw = write("adamw.json", R"({"type": "AdamW"})");
  const std::string folder = folder_.path("run");
  run(2, {"--config", adamw}, [&](Trainer& trainer, const RunSetup& setup, Communicator& comm) {
    trainer.initialize();
    save_run(folder, setup, trainer, comm);
  });
  const auto resume = [&](const std::string& file) {
    std::string error;
    run(2, {"--config", file}, [&](Trainer& trainer, const RunSetup& setup, Communicator& comm) {
      try {
        resume_run(folder, setup, trainer, comm);
      } catch (const CheckpointError& caught) {
        if (comm.rank() == 0) error = caught.what();
      }
    });
    return error;
  };
  EXPECT_EQ(resume(adamw), "");
  EXPECT_EQ(resume(write("adam.json", R"({"type": "Adam"})")), "");
  const std::string lamb = write("lamb.json", R"({"type": "Lamb"})");
  EXPECT_THAT(resume(lamb), AllOf(HasSubstr("are those of AdamW, this run's optimizer is Lamb"),
                                  Not(HasSubstr("--init"))));
  EXPECT_THAT(resume(write("l2.json", R"({"type": "Adam", "params": {"adam_w_mode": false}})")),
              HasSubstr("this run's optimizer is Adam with adam_w_mode false"));
  folder_.write("run/model.safetensors", "");
  EXPECT_THAT(resume(lamb), HasSubstr("start from its weights alone with --init " + folder));
}

TEST_F(TrainerTest, ResumingOnOtherDataOfTheSameLengthIsSaid) {
  const std::string folder = folder_.path("run");
  run(1, {"--config", config(0)}, [&](Trainer& trainer, const RunSetup& setup, Communicator& comm) {
    save_run(folder, setup, trainer, comm);
  });
  std::string text = read_file(data_);
  const std::string same = folder_.write("elsewhere/text", text);
  text[2000] ^= 1;
  const std::string other = folder_.write("other", text);
  const auto warning = [&](const std::string& data) {
    std::string text_of_warning;
    run(1, {"--config", config(0)}, [&](Trainer&, const RunSetup&, Communicator& comm) {
      const CommandLine line = parse_command_line({"--data", data, "--model", model_, "--seq_len",
                                                   "8", "--seed", "3", "--config", config(0)});
      const RunSetup setup = make_run_setup(line, {});
      const auto device = make_cpu_device();
      Trainer trainer(setup, comm, *device);
      text_of_warning = resume_run(folder, setup, trainer, comm);
    });
    return text_of_warning;
  };
  EXPECT_EQ(warning(same), "");
  EXPECT_THAT(warning(other), AllOf(HasSubstr("data_hash was"), Not(HasSubstr("data_tokens")),
                                    HasSubstr("to continue that run, give it the --data")));
}

TEST_F(TrainerTest, ASavedModelIsAStartingPoint) {
  const std::string folder = folder_.path("hf");
  uint64_t expected = 0;
  run(2, {"--config", config(2)}, [&](Trainer& trainer, const RunSetup& setup, Communicator& comm) {
    trainer.initialize();
    trainer.step(0);
    const auto device = make_cpu_device();
    write_run_config(folder, setup, comm, *device);
    write_hf_weights(folder, trainer.engine(), comm);
    const uint64_t hash = trainer.engine().states().parameter_hash();
    if (comm.rank() == 0) expected = hash;
  });
  EXPECT_EQ(hash_after(0, 1, {"--config", config(0), "--init", folder}), expected);
  EXPECT_EQ(read_hf_config(folder), gpt_config(folder + "/config.json"));
  EXPECT_EQ(read_hf_config(folder).vocabulary, 256);
}

TEST_F(TrainerTest, WeightsOfAnotherModelAreNamed) {
  const std::string folder = folder_.path("hf");
  run(1, {"--config", config(0)}, [&](Trainer& trainer, const RunSetup& setup, Communicator& comm) {
    trainer.initialize();
    const auto device = make_cpu_device();
    write_run_config(folder, setup, comm, *device);
    write_hf_weights(folder, trainer.engine(), comm);
  });
  const auto error = [&](const char* model) -> std::string {
    try {
      HfWeights(folder, gpt_config(folder_.write("other.json", model)));
    } catch (const CheckpointError& problem) {
      return problem.what();
    }
    return "";
  };
  EXPECT_THAT(error(R"({"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16,
                        "n_inner": 64, "vocab_size": 256})"),
              HasSubstr("h.0.mlp.c_fc.weight has shape [16, 32], the model needs [16, 64]"));
  EXPECT_THAT(error(R"({"n_embd": 16, "n_layer": 3, "n_head": 2, "n_positions": 16,
                        "n_inner": 32, "vocab_size": 256})"),
              HasSubstr("no tensor transformer.h.2.ln_1.weight"));
}

TEST_F(TrainerTest, ResumingWithAnotherModelIsAnErrorThatNamesTheDifference) {
  const std::string folder = folder_.path("run");
  run(2, {"--config", config(2)}, [&](Trainer& trainer, const RunSetup& setup, Communicator& comm) {
    save_run(folder, setup, trainer, comm);
  });
  // One head or two: the parameters have the same shapes.
  std::string changed = read_file(model_);
  changed.replace(changed.find("\"n_head\": 2"), 11, "\"n_head\": 1");
  model_ = folder_.write("changed.json", changed);
  run(2, {"--config", config(2)}, [&](Trainer& trainer, const RunSetup& setup, Communicator& comm) {
    EXPECT_THAT(
        [&] { resume_run(folder, setup, trainer, comm); },
        ThrowsMessage<CheckpointError>(AllOf(HasSubstr("another model: n_head was 2 and is 1"),
                                             HasSubstr("restore config.json"))));
  });
}

class RunSetupTest : public TrainerTest {
 protected:
  std::string error_of(std::vector<std::string> options) const {
    try {
      make_run_setup(parse_command_line(options), {});
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
};

TEST_F(RunSetupTest, ContradictionsAreNamed) {
  EXPECT_EQ(error_of({"--data", data_}), "no error");
  EXPECT_THAT(error_of({"--data", data_, "--seq_len", "300"}), HasSubstr("256 positions"));
  EXPECT_THAT(error_of({"--data", data_, "--model", "huge"}), HasSubstr("'huge'"));
  const std::string small = folder_.write(
      "small.json",
      R"({"vocab_size": 100, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16})");
  EXPECT_THAT(error_of({"--data", data_, "--model", small}), HasSubstr("vocabulary of 100"));
  const std::string tokens = folder_.write("t.bin", token_file(9, std::vector<uint16_t>(600, 1)));
  EXPECT_EQ(error_of({"--data", tokens, "--sample", "1, 8 0"}), "no error");
  EXPECT_THAT(error_of({"--data", tokens, "--sample", "1 9"}), HasSubstr("'9'"));
  EXPECT_THAT(error_of({"--data", tokens, "--sample", "hello"}), HasSubstr("'hello'"));
}

TEST_F(RunSetupTest, WithoutAConfigTheRateFallsToZeroByTheLastStep) {
  const auto setup_of = [&](std::vector<std::string> options) {
    options.insert(options.begin(), {"--data", data_});
    return make_run_setup(parse_command_line(options), {});
  };
  const RunSetup setup = setup_of({});
  EXPECT_EQ(setup.options.steps, 700);
  EXPECT_EQ(setup.batch.seq_len, 128);
  EXPECT_EQ(setup.batch.micro_batch, 4);
  EXPECT_EQ(setup.config.optimizer.type, "Muon");
  for (const int64_t steps : {0, 1, 5, 1000}) {
    const RunSetup shorter = setup_of({"--steps", std::to_string(steps)});
    EXPECT_EQ(shorter.options.steps, steps);
    const std::vector<double> lrs = {shorter.config.optimizer.lr};
    const auto schedule = make_lr_schedule(shorter.config.scheduler, lrs);
    EXPECT_GT(schedule->values(steps / 2, 0).lr, 0.0) << steps;
    EXPECT_NEAR(schedule->values(std::max<int64_t>(1, steps), 0).lr, 0.0, 1e-12) << steps;
  }
  const std::string file = folder_.write("batch.json", R"({"train_micro_batch_size_per_gpu": 2})");
  const RunSetup with_config = setup_of({"--config", file});
  EXPECT_EQ(with_config.options.steps, 400);
  EXPECT_EQ(with_config.batch.seq_len, 256);
  EXPECT_EQ(with_config.config.optimizer.type, "AdamW");
}

TEST_F(RunSetupTest, ActivationsThatNoMachineHoldsAreRefused) {
  for (const char* micro_batch : {"1000000000", "1000000000000000000"}) {
    EXPECT_THAT(
        error_of({"--data", data_, "--micro_batch", micro_batch}),
        AllOf(HasSubstr(std::string("--micro_batch ") + micro_batch + " with --seq_len 128"),
              ContainsRegex(" [PE]iB for the activations"), HasSubstr("or --recompute")));
  }
  EXPECT_THAT(error_of({"--data", data_, "--micro_batch", "9223372036854775807"}),
              HasSubstr("micro_batch"));
}

TEST_F(TrainerTest, Tf32NeedsCuda) {
  const auto device = make_cpu_device();
  EXPECT_EQ(make_kernels(*device, {DType::fp32, false})->activation_dtype(), DType::fp32);
  EXPECT_THROW(make_kernels(*device, {DType::fp32, true}), ConfigError);
  EXPECT_THROW(make_kernels(*device, {DType::fp32, false, 1 << 20}), ConfigError);
}

// The figure that decides is what is allocated.
TEST_F(TrainerTest, ActivationsTakeWhatIsForeseen) {
  for (const char* recompute : {"--seed=3", "--recompute"}) {
    zerorun::testing::run_ranks(1, [&](Communicator& comm) {
      const RunSetup setup =
          make_run_setup(parse_command_line({"--data", data_, "--model", model_, "--micro_batch",
                                             "16", "--seq_len", "16", recompute}),
                         {});
      const auto device = make_cpu_device();
      const Trainer trainer(setup, comm, *device);
      EXPECT_NEAR(
          static_cast<double>(device->memory_use(MemoryCategory::activations).live_bytes),
          16 * 16 * activation_nbytes_per_token(setup.model, setup.options.recompute, DType::fp32),
          1024);
    });
  }
}

TEST_F(RunSetupTest, TheDataDecideTheVocabulary) {
  const std::string tokens = folder_.write("t.bin", token_file(999, std::vector<uint16_t>(600, 1)));
  EXPECT_EQ(make_run_setup(parse_command_line({"--data", tokens}), {}).model.vocabulary, 999);
  EXPECT_EQ(make_run_setup(parse_command_line({"--data", data_}), {}).model.vocabulary, 256);
}

TEST_F(RunSetupTest, WithoutConfigItIsStage2InBf16WithClipping) {
  const RunSetup setup = make_run_setup(parse_command_line({"--data", data_}), {.world_size = 2});
  EXPECT_EQ(setup.config.zero.stage, 2);
  EXPECT_EQ(setup.config.precision.param_dtype, DType::bf16);
  EXPECT_EQ(setup.config.gradient_clipping, 1.0);
  EXPECT_EQ(setup.config.optimizer.type, "Muon");
  EXPECT_EQ(setup.batch.global_batch(), 8);
}

TEST_F(RunSetupTest, TheConfigDecidesWhatTheCommandLineLeavesOpen) {
  const RunSetup setup = make_run_setup(
      parse_command_line({"--data", data_, "--config", config(1)}), {.world_size = 2});
  EXPECT_EQ(setup.batch.micro_batch, 2);
  EXPECT_EQ(setup.config.precision.param_dtype, DType::fp32);
  const RunSetup overridden =
      make_run_setup(parse_command_line({"--data", data_, "--config", config(1), "--micro_batch",
                                         "3", "--dtype", "bf16"}),
                     {.world_size = 2});
  EXPECT_EQ(overridden.batch.micro_batch, 3);
  EXPECT_EQ(overridden.config.precision.param_dtype, DType::bf16);
}

}  // namespace
}  // namespace zerorun::train::testing
