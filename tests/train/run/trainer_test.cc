#include "train/run/trainer.h"

#include "tests/train/run/trainer_fixture.h"
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
    EXPECT_EQ(rank.trainer.step(number == 1 ? SIGHUP : SIGINT).signal, SIGHUP);
    const auto [report, signal] = rank.trainer.step(number == 0 ? SIGTERM : SIGHUP);
    EXPECT_EQ(signal, SIGTERM);
    EXPECT_EQ(report.step, 4);
    losses.at(static_cast<size_t>(number)) = report.loss;
  });
  EXPECT_EQ(losses[0], losses[1]);
}

// A run that saves into `run`, and others that resume it.
struct SavedRunTest : TrainerTest {
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
              HasAll("are those of AdamW, this run's optimizer is Lamb", Not(HasSubstr("--init"))));
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
              HasAll("data_hash was", Not(HasSubstr("data_tokens")),
                     "to continue that run, give it the --data"));
}

TEST_F(SavedRunTest, ResumingWithAnotherModelIsAnErrorThatNamesTheDifference) {
  save(2, {"--config", config(2)});
  // One head or two: the parameters have the same shapes.
  std::string changed = folder_.read(model_);
  changed.replace(changed.find("\"n_head\": 2"), 11, "\"n_head\": 1");
  model_ = folder_.write("changed.json", changed);
  EXPECT_THAT(resume(2, {"--config", config(2)}),
              HasAll("another model: n_head was 2 and is 1", "restore config.json"));
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

// fp16, loss scaling and learning rate schedules, as the config asks for them.

// Linear warm-up over four steps to a rate of each group's own: matrices, then vectors.
constexpr const char* kSchedule = R"(, "scheduler": {"type": "WarmupLR", "params": {
    "warmup_max_lr": [0.008, 0.016], "warmup_num_steps": 4, "warmup_type": "linear"}})";

struct PrecisionTest : TrainerTest {
  static std::vector<StepReport> steps(Trainer& trainer, int count) {
    std::vector<StepReport> reports;
    for (int i = 0; i < count; ++i) reports.push_back(trainer.step(0).report);
    return reports;
  }
  // Reports of a new run with these blocks in its config, on rank 0.
  std::vector<StepReport> reports(int count, const std::string& blocks,
                                  const std::string& option = "--seed=3") const {
    return result_of(2, {"--config", config(2, "", blocks), option}, [&](const RankOfRun& rank) {
      rank.trainer.initialize();
      return steps(rank.trainer, count);
    });
  }
};

std::string fp16(const std::string& more) { return R"(, "fp16": {"enabled": true, )" + more + "}"; }

TEST_F(PrecisionTest, SixteenBitTrainingFollowsFp32) {
  constexpr int kSteps = 40;
  const auto expected = reports(kSteps, "");
  ASSERT_LT(expected.back().loss, 0.7 * expected.front().loss);
  const auto half = reports(kSteps, fp16(R"("initial_scale_power": 10)"));
  const auto brain = reports(kSteps, R"(, "bf16": {"enabled": true})");
  for (size_t i = 0; i < kSteps; ++i) {
    EXPECT_FALSE(half[i].skipped);
    EXPECT_EQ(half[i].loss_scale, 1024.0);
    EXPECT_EQ(brain[i].loss_scale, 1.0);
    EXPECT_NEAR(half[i].loss, expected[i].loss, 0.01 * expected[i].loss) << i;
    EXPECT_NEAR(brain[i].loss, expected[i].loss, 0.05 * expected[i].loss) << i;
    // Unscaled, so that clipping sees the same as without a scale.
    EXPECT_NEAR(half[i].grad_norm, expected[i].grad_norm, 0.1 * expected[i].grad_norm) << i;
  }
}

TEST_F(PrecisionTest, AnOverflowSkipsTheStepAndTheSchedule) {
  const std::string blocks = fp16(R"("initial_scale_power": 32, "hysteresis": 1)") + kSchedule;
  run(2, {"--config", config(2, "", blocks)}, [&](const RankOfRun& rank) {
    Trainer& trainer = rank.trainer;
    trainer.initialize();
    const uint64_t before = trainer.engine().states().parameter_hash();
    double scale = std::ldexp(1.0, 32);
    StepReport report = trainer.step(0).report;
    ASSERT_TRUE(report.skipped);
    for (; report.skipped; report = trainer.step(0).report) {
      EXPECT_EQ(report.loss_scale, scale);
      EXPECT_EQ(report.lr, 0.0F);
      EXPECT_EQ(trainer.engine().states().parameter_hash(), before);
      EXPECT_EQ(trainer.engine().states().progress().step_count, 0);
      scale /= 2;
    }
    EXPECT_EQ(report.loss_scale, scale);
    EXPECT_EQ(report.lr, 0.0F);  // the first of the schedule
    EXPECT_EQ(trainer.engine().states().progress().step_count, 1);
    EXPECT_EQ(trainer.position().step, report.step);
    EXPECT_EQ(trainer.step(0).report.lr, 0.0F);  // DeepSpeed's schedules begin at iteration -1
    EXPECT_EQ(trainer.step(0).report.lr, 0.002F);
    EXPECT_EQ(trainer.engine().groups()[1].lr, 0.004F);  // at a rate of its own
  });
}

// The window is one clean step longer than what was saved, and the schedule is on its way.
TEST_F(PrecisionTest, AResumedRunHasTheScaleAndTheRateItWouldHaveHad) {
  const std::string blocks =
      fp16(R"("initial_scale_power": 12, "loss_scale_window": 4)") + kSchedule;
  const std::vector<std::string> options = {"--config", config(3, "", blocks)};
  const std::string folder = folder_.path("run");
  const auto figures_of = [](Trainer& trainer) {
    std::vector<std::tuple<int64_t, double, float, double, double>> figures;
    for (const StepReport& one : steps(trainer, 5)) {
      figures.emplace_back(one.step, one.loss, one.lr, one.loss_scale, one.grad_norm);
    }
    return std::pair(figures, trainer.engine().states().parameter_hash());
  };
  const auto expected = result_of(2, options, [&](const RankOfRun& rank) {
    rank.train(3);
    save_run(folder, rank.setup, rank.trainer, rank.comm);
    return figures_of(rank.trainer);
  });
  ASSERT_NE(std::get<3>(expected.first.front()), std::get<3>(expected.first.back()));  // scale
  ASSERT_NE(std::get<2>(expected.first.front()), std::get<2>(expected.first.back()));  // rate
  run(2, options, [&](const RankOfRun& rank) {
    EXPECT_EQ(resume_run(folder, rank.setup, rank.trainer, rank.comm), "");
    EXPECT_EQ(rank.trainer.position().samples, 12);
    EXPECT_EQ(figures_of(rank.trainer), expected);
  });
  run(2, {options[0], options[1], "--seed", "9"}, [&](const RankOfRun& rank) {
    EXPECT_THAT(resume_run(folder, rank.setup, rank.trainer, rank.comm),
                HasSubstr("seed was 3 and is 9"));
  });
}

TEST_F(PrecisionTest, AccumulationAndClippingKeepScaleAndNorm) {
  const std::string scale = fp16(R"("initial_scale_power": 8)");
  const auto free = reports(3, scale + R"(, "gradient_clipping": 0.0)");
  EXPECT_EQ(free[0].clipped_grad_norm(), free[0].grad_norm);
  const auto whole = reports(3, scale + R"(, "gradient_clipping": 0.01)");
  EXPECT_EQ(whole[0].grad_norm, free[0].grad_norm);
  const auto summed = reports(3, scale + R"(, "gradient_clipping": 0.01, "train_batch_size": 4)",
                              "--micro_batch=1");
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_GT(whole[i].grad_norm, 0.1);
    EXPECT_NEAR(whole[i].clipped_grad_norm(), 0.01, 1e-6);
    EXPECT_NEAR(summed[i].loss, whole[i].loss, 2e-3 * whole[i].loss);
    EXPECT_NEAR(summed[i].grad_norm, whole[i].grad_norm, 2e-2 * whole[i].grad_norm);
    EXPECT_NEAR(summed[i].clipped_grad_norm(), 0.01, 1e-6);
    EXPECT_EQ(summed[i].loss_scale, 256.0);
  }
}

TEST_F(PrecisionTest, AutoIsResolvedFromTheRun) {
  const std::string decay = R"(, "scheduler": {"type": "WarmupDecayLR", "params": {
      "total_num_steps": "auto", "warmup_num_steps": 2}})";
  const RunSetup setup = setup_of({"--config", config(2, "", decay), "--steps", "70"});
  EXPECT_EQ(setup.config.scheduler.total_num_steps, 70);
}

}  // namespace
}  // namespace zerorun::train::testing
