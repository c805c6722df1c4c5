#include "train/run/trainer.h"

#include "tests/common.h"
#include "tests/error_of.h"
#include "tests/train/run/trainer_fixture.h"
#include "train/model/activations.h"
#include "train/model/kernels.h"
#include "train/run/run.h"

namespace zerorun::train::testing {
namespace {

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
      const std::string own = zerorun::testing::error_of<CheckpointError>(
          [&] { resume_run(folder, setup, trainer, comm); });
      if (comm.rank() == 0) error = own;
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
  std::string text = folder_.read(data_);
  const std::string same = folder_.write("elsewhere/text", text);
  text[2000] ^= 1;
  const std::string other = folder_.write("other", text);
  const auto warning = [&](const std::string& data) {
    data_ = data;
    std::string said;
    run(1, {"--config", config(0)},
        [&](Trainer& trainer, const RunSetup& setup, Communicator& comm) {
          said = resume_run(folder, setup, trainer, comm);
        });
    return said;
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
    if (comm.rank() == 0) write_hf_config(folder, setup.model);
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
    if (comm.rank() == 0) write_hf_config(folder, setup.model);
    write_hf_weights(folder, trainer.engine(), comm);
  });
  const auto error = [&](const char* model) {
    return zerorun::testing::error_of<CheckpointError>(
        [&] { HfWeights(folder, gpt_config(folder_.write("other.json", model))); });
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
  std::string changed = folder_.read(model_);
  changed.replace(changed.find("\"n_head\": 2"), 11, "\"n_head\": 1");
  model_ = folder_.write("changed.json", changed);
  run(2, {"--config", config(2)}, [&](Trainer& trainer, const RunSetup& setup, Communicator& comm) {
    EXPECT_THAT(
        [&] { resume_run(folder, setup, trainer, comm); },
        ThrowsMessage<CheckpointError>(AllOf(HasSubstr("another model: n_head was 2 and is 1"),
                                             HasSubstr("restore config.json"))));
  });
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
          16 * 16 * activation_nbytes_per_token(setup.model, setup.options.recompute, DType::fp32) +
              logits_nbytes(setup.model, DType::fp32, 16 * 16),
          1024);
    });
  }
}

}  // namespace
}  // namespace zerorun::train::testing
