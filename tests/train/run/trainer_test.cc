#include "train/run/trainer.h"

#include "tests/common.h"
#include "tests/error_of.h"
#include "tests/train/run/trainer_fixture.h"
#include "train/model/activations.h"
#include "train/run/run.h"

namespace zerorun::train::testing {
namespace {

TEST_F(TrainerTest, EveryStageGivesTheSameParameters) {
  for (const char* dtype : {"fp32", "bf16", "fp16"}) {
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

TEST_F(TrainerTest, EvaluationDoesNotDependOnTheRanks) {
  const auto evaluate = [&](int world_size) {
    return result_of(world_size, {"--config", config(3)}, [&](const RankOfRun& rank) {
      rank.trainer.initialize();
      return rank.trainer.evaluate();
    });
  };
  const double expected = evaluate(1);
  EXPECT_NEAR(expected, std::log(256.0), 0.3);
  EXPECT_NEAR(evaluate(2), expected, 1e-5);
  EXPECT_NEAR(evaluate(3), expected, 1e-5);
}

TEST_F(TrainerTest, ASignalOnOneRankStopsAllAndTheLossIsTheSame) {
  std::array<double, 2> losses{};
  run(2, {"--config", config(2)}, [&](const RankOfRun& rank) {
    rank.trainer.initialize();
    const int number = rank.comm.rank();
    EXPECT_EQ(rank.trainer.step(0).signal, 0);
    EXPECT_EQ(rank.trainer.step(number == 1 ? SIGINT : 0).signal, SIGINT);
    const auto [report, signal] = rank.trainer.step(number == 0 ? SIGTERM : SIGINT);
    EXPECT_EQ(signal, SIGTERM);
    EXPECT_EQ(report.step, 3);
    losses.at(static_cast<size_t>(number)) = report.loss;
  });
  EXPECT_EQ(losses[0], losses[1]);
}

// A run that saves into `run`, and others that resume it.
class SavedRunTest : public TrainerTest {
 protected:
  void save(int world_size, const std::vector<std::string>& options) const {
    run(world_size, options, [&](const RankOfRun& rank) {
      rank.train(0);
      save_run(saved_, rank.setup, rank.trainer, rank.comm);
    });
  }
  // The error of resuming, or what it says.
  std::string resume(int world_size, const std::vector<std::string>& options) const {
    return result_of(world_size, options, [&](const RankOfRun& rank) {
      std::string said;
      const std::string error = error_of<CheckpointError>(
          [&] { said = resume_run(saved_, rank.setup, rank.trainer, rank.comm); });
      return error + said;
    });
  }

  const std::string saved_ = folder_.path("run");
};

// Lamb keeps states of the same names as AdamW, and Adam with L2 the very same ones.
TEST_F(SavedRunTest, ResumingWithAnotherOptimizerIsAnErrorThatNamesBoth) {
  const auto with = [&](const std::string& type) {
    const std::string file = folder_.write(
        "config.json", R"({"train_batch_size": 4, "optimizer": {"type": )" + type + "}}");
    return std::vector<std::string>{"--config", file};
  };
  save(2, with(R"("AdamW")"));
  EXPECT_EQ(resume(2, with(R"("Adam")")), "");
  EXPECT_THAT(resume(2, with(R"("Lamb")")),
              AllOf(HasSubstr("are those of AdamW, this run's optimizer is Lamb"),
                    Not(HasSubstr("--init"))));
  EXPECT_THAT(resume(2, with(R"("Adam", "params": {"adam_w_mode": false})")),
              HasSubstr("this run's optimizer is Adam with adam_w_mode false"));
  folder_.write("run/model.safetensors", "");
  EXPECT_THAT(resume(2, with(R"("Lamb")")),
              HasSubstr("start from its weights alone with --init " + saved_));
}

TEST_F(SavedRunTest, ResumingOnOtherDataOfTheSameLengthIsSaid) {
  save(1, {"--config", config(0)});
  std::string text = folder_.read(data_);
  data_ = folder_.write("elsewhere/text", text);
  EXPECT_EQ(resume(1, {"--config", config(0)}), "");
  text[2000] ^= 1;
  data_ = folder_.write("other", text);
  EXPECT_THAT(resume(1, {"--config", config(0)}),
              AllOf(HasSubstr("data_hash was"), Not(HasSubstr("data_tokens")),
                    HasSubstr("to continue that run, give it the --data")));
}

TEST_F(SavedRunTest, ResumingWithAnotherModelIsAnErrorThatNamesTheDifference) {
  save(2, {"--config", config(2)});
  // One head or two: the parameters have the same shapes.
  std::string changed = folder_.read(model_);
  changed.replace(changed.find("\"n_head\": 2"), 11, "\"n_head\": 1");
  model_ = folder_.write("changed.json", changed);
  EXPECT_THAT(
      resume(2, {"--config", config(2)}),
      AllOf(HasSubstr("another model: n_head was 2 and is 1"), HasSubstr("restore config.json")));
}

TEST_F(TrainerTest, SavedWeightsAreAStartingPointOfTheirModel) {
  const std::string saved = folder_.path("hf");
  const uint64_t expected = result_of(2, {"--config", config(2)}, [&](const RankOfRun& rank) {
    rank.train(1);
    if (rank.comm.rank() == 0) write_hf_config(saved, rank.setup.model);
    write_hf_weights(saved, rank.trainer.engine(), rank.comm);
    return rank.hash();
  });
  EXPECT_EQ(hash_after(0, 1, {"--config", config(0), "--init", saved}), expected);
  const auto error = [&](int layers, int inner) {
    GptConfig model = read_hf_config(saved);
    EXPECT_EQ(model.vocabulary, 256);
    model.layers = layers;
    model.inner = inner;
    return error_of<CheckpointError>([&] { HfWeights(saved, model); });
  };
  EXPECT_THAT(error(2, 64), HasSubstr("h.0.mlp.c_fc.weight has shape [16, 32], the model needs "));
  EXPECT_THAT(error(3, 32), HasSubstr("no tensor transformer.h.2.ln_1.weight"));
}

// The figure that decides is what is allocated.
TEST_F(TrainerTest, ActivationsTakeWhatIsForeseen) {
  for (const char* recompute : {"--seed=3", "--recompute"}) {
    run(1, {"--micro_batch", "16", "--seq_len", "16", recompute}, [&](const RankOfRun& rank) {
      const GptConfig& model = rank.setup.model;
      const Device& device = rank.trainer.engine().device();
      EXPECT_NEAR(
          static_cast<double>(device.memory_use(MemoryCategory::activations).live_bytes),
          16 * 16 * activation_nbytes_per_token(model, rank.setup.options.recompute, DType::fp32) +
              logits_nbytes(model, DType::fp32, 16 * 16),
          1024);
    });
  }
}

}  // namespace
}  // namespace zerorun::train::testing
