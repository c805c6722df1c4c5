// fp16, loss scaling and learning rate schedules, as the config asks for them.

#include "tests/train/run/trainer_fixture.h"
#include "train/run/run.h"

namespace zerorun::train::testing {
namespace {

// Linear warm-up over four steps to a rate of each group's own: matrices, then vectors.
constexpr const char* kSchedule = R"("scheduler": {"type": "WarmupLR", "params": {
    "warmup_max_lr": [0.008, 0.016], "warmup_num_steps": 4, "warmup_type": "linear"}})";

class PrecisionTest : public TextTest {
 protected:
  // A config of this stage with more top-level blocks.
  std::string config(int stage, const std::string& blocks) const {
    return folder_.write("config.json", fmt::format(R"({{
        "train_micro_batch_size_per_gpu": 2, "zero_optimization": {{"stage": {}}},
        "optimizer": {{"type": "AdamW", "params": {{"lr": 0.01}}}}, {}}})",
                                                    stage, blocks));
  }

  template <typename Body>
  void run(const std::string& config, const Body& body) const {
    TextTest::run(2, {"--config", config}, body);
  }

  static std::vector<StepReport> steps(Trainer& trainer, int count) {
    std::vector<StepReport> reports;
    for (int i = 0; i < count; ++i) reports.push_back(trainer.step(0).report);
    return reports;
  }
  // Reports of a new run, on rank 0.
  std::vector<StepReport> reports(const std::string& config, int count) const {
    return result_of(2, {"--config", config}, [&](const RankOfRun& rank) {
      rank.trainer.initialize();
      return steps(rank.trainer, count);
    });
  }
};

std::string fp16(const std::string& more = "") {
  return R"("fp16": {"enabled": true)" + more + "}";
}

TEST_F(PrecisionTest, SixteenBitTrainingFollowsFp32) {
  constexpr int kSteps = 40;
  const auto expected = reports(config(2, R"("bf16": {"enabled": false})"), kSteps);
  ASSERT_LT(expected.back().loss, 0.7 * expected.front().loss);
  const auto half = reports(config(2, fp16(R"(, "initial_scale_power": 10)")), kSteps);
  const auto brain = reports(config(2, R"("bf16": {"enabled": true})"), kSteps);
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

TEST_F(PrecisionTest, EveryStageGivesTheSameParametersInFp16) {
  const std::string blocks =
      fp16(R"(, "loss_scale_window": 2, "hysteresis": 1)") + ", " + kSchedule;
  const auto hash_at = [&](int stage) {
    return result_of(2, {"--config", config(stage, blocks)}, [&](const RankOfRun& rank) {
      rank.train(6);
      return rank.hash();
    });
  };
  const uint64_t expected = hash_at(0);
  for (int stage : {1, 2, 3}) EXPECT_EQ(hash_at(stage), expected) << "stage " << stage;
}

TEST_F(PrecisionTest, AnOverflowSkipsTheStepAndTheSchedule) {
  const std::string blocks =
      fp16(R"(, "initial_scale_power": 32, "hysteresis": 1)") + ", " + kSchedule;
  run(config(2, blocks), [&](const RankOfRun& rank) {
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
    EXPECT_EQ(trainer.step(0).report.lr, 0.0F);
    EXPECT_EQ(trainer.step(0).report.lr, 0.002F);
  });
}

TEST_F(PrecisionTest, EveryGroupHasItsOwnRate) {
  run(config(1, kSchedule), [&](const RankOfRun& rank) {
    Trainer& trainer = rank.trainer;
    trainer.initialize();
    for (int step = 0; step < 7; ++step) {
      // DeepSpeed's schedules begin at iteration -1.
      const float part = std::clamp(static_cast<float>(step - 1) / 4.0F, 0.0F, 1.0F);
      const float lr = trainer.step(0).report.lr;
      EXPECT_FLOAT_EQ(lr, 0.008F * part);
      EXPECT_EQ(trainer.engine().groups()[0].lr, lr);
      EXPECT_FLOAT_EQ(trainer.engine().groups()[1].lr, 0.016F * part);
    }
  });
}

// The window is one clean step longer than what was saved, and the schedule is on its way.
TEST_F(PrecisionTest, AResumedRunHasTheScaleAndTheRateItWouldHaveHad) {
  const std::string path =
      config(3, fp16(R"(, "initial_scale_power": 12, "loss_scale_window": 4)") + ", " + kSchedule);
  const std::string folder = folder_.path("run");
  const auto figures_of = [](Trainer& trainer) {
    std::vector<std::tuple<int64_t, double, float, double, double>> figures;
    for (const StepReport& one : steps(trainer, 5)) {
      figures.emplace_back(one.step, one.loss, one.lr, one.loss_scale, one.grad_norm);
    }
    return std::pair(figures, trainer.engine().states().parameter_hash());
  };
  const auto expected = result_of(2, {"--config", path}, [&](const RankOfRun& rank) {
    rank.train(3);
    save_run(folder, rank.setup, rank.trainer, rank.comm);
    return figures_of(rank.trainer);
  });
  ASSERT_NE(std::get<3>(expected.first.front()), std::get<3>(expected.first.back()));  // scale
  ASSERT_NE(std::get<2>(expected.first.front()), std::get<2>(expected.first.back()));  // rate
  run(path, [&](const RankOfRun& rank) {
    EXPECT_EQ(resume_run(folder, rank.setup, rank.trainer, rank.comm), "");
    EXPECT_EQ(figures_of(rank.trainer), expected);
  });
}

// Gradients of several micro-steps are summed before they are looked at and clipped.
TEST_F(PrecisionTest, AccumulationKeepsScaleNormAndClipping) {
  const auto whole = reports(config(2, fp16(R"(, "initial_scale_power": 8)")), 4);
  const std::string parts = folder_.write("parts.json", R"({
      "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2,
      "zero_optimization": {"stage": 2}, "fp16": {"enabled": true, "initial_scale_power": 8},
      "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}})");
  const auto summed = reports(parts, 4);
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_NEAR(summed[i].loss, whole[i].loss, 2e-3 * whole[i].loss);
    EXPECT_NEAR(summed[i].grad_norm, whole[i].grad_norm, 2e-2 * whole[i].grad_norm);
    EXPECT_NEAR(summed[i].clipped_grad_norm(), whole[i].clipped_grad_norm(), 2e-2);
    EXPECT_EQ(summed[i].loss_scale, 256.0);
  }
}

TEST_F(PrecisionTest, EveryOptimizerOfTheConfigTrains) {
  struct Case {
    const char* type;
    double lr;
  };
  for (const Case& one :
       {Case{"Adam", 0.005}, Case{"AdamW8bit", 0.005}, Case{"SGD", 0.5}, Case{"Adagrad", 0.02},
        Case{"Lion", 0.001}, Case{"Lamb", 0.1}, Case{"Muon", 0.01}}) {
    const std::string path = folder_.write("optimizer.json", fmt::format(R"({{
        "train_micro_batch_size_per_gpu": 2, "zero_optimization": {{"stage": 2}},
        "bf16": {{"enabled": true}},
        "optimizer": {{"type": "{}", "params": {{"lr": {}}}}}}})",
                                                                         one.type, one.lr));
    const auto steps = reports(path, 40);
    EXPECT_LT(steps.back().loss, 0.9 * steps.front().loss) << one.type;
  }
}

TEST_F(PrecisionTest, ReportsTheNormBeforeAndAfterClipping) {
  const auto clipped = reports(config(2, R"("gradient_clipping": 0.01)"), 3);
  const auto free = reports(config(2, R"("gradient_clipping": 0.0)"), 1);
  for (const StepReport& report : clipped) {
    EXPECT_GT(report.grad_norm, 0.1);
    EXPECT_NEAR(report.clipped_grad_norm(), 0.01, 1e-6);
  }
  EXPECT_EQ(free[0].grad_norm, clipped[0].grad_norm);
  EXPECT_EQ(free[0].clipped_grad_norm(), free[0].grad_norm);
}

TEST_F(PrecisionTest, AutoIsResolvedFromTheRun) {
  const std::string decay = R"("scheduler": {"type": "WarmupDecayLR", "params": {
      "total_num_steps": "auto", "warmup_num_steps": 2}})";
  EXPECT_EQ(
      setup_of({"--config", config(2, decay), "--steps", "70"}).config.scheduler.total_num_steps,
      70);
  const std::string unknown = R"("scheduler": {"type": "WarmupDecayLR", "params": {
      "total_num_steps": 9, "warmup_num_steps": "auto"}})";
  EXPECT_THAT(
      [&] {
        setup_of({"--config", config(2, unknown)});
      },
      ThrowsMessage<ConfigError>(
          AllOf(HasSubstr("/scheduler/params/warmup_num_steps"), HasSubstr("auto"))));
}

}  // namespace
}  // namespace zerorun::train::testing
