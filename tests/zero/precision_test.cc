// Loss scaling, dtypes on the wire and of what is kept, and divisions around the sum.
#include "tests/zero/toy_run.h"

namespace zerorun::testing::precision {
namespace {

Config config_of(DType dtype, int stage) {
  Config config = toy_config(stage, dtype);
  config.zero.overlap_comm = stage >= 2;
  config.zero.reduce_bucket_size = 1500;
  config.precision.loss_scaler.initial_scale_power = 4;
  return config;
}

struct Outcome {
  uint64_t hash = 0;
  std::vector<StepResult> results;
  EngineProgress progress;
};

using Micro = std::function<void(Engine&, Communicator&, int64_t step)>;

Outcome train(const Config& config, const Micro& micro, int64_t steps = 4) {
  return result_of({config}, [&](Engine& engine, Communicator& comm) {
    Outcome own;
    for (int64_t step = 0; step < steps; ++step) {
      micro(engine, comm, step);
      own.results.push_back(engine.step());
    }
    own.hash = engine.states().parameter_hash();
    own.progress = engine.states().progress();
    return own;
  });
}

void toy(Engine& engine, Communicator& comm, int64_t step) {
  ToyModel::micro_step(engine, comm.rank(), 0, step);
}

// Micro-steps in which one gradient is `value`, or value(rank), and the others are 0.
Micro constant(const std::string& name, const std::function<float(int rank)>& value) {
  return [=](Engine& engine, Communicator& comm, int64_t) {
    for (int64_t micro = 0; micro < engine.batch().rule.accumulation_steps; ++micro) {
      write_gradients(engine, [&](ParameterId id, int64_t) {
        return id == engine.parameter_id(name) ? value(comm.rank()) : 0.0F;
      });
      engine.end_micro_step();
    }
  };
}
Micro constant(const std::string& name, float value) {
  return constant(name, [=](int) { return value; });
}
StepResult step_with(const Config& config, float value) {
  return train(config, constant("h.0.bias", value), 1).results[0];
}

// DeepSpeed 0.19 divides by the scale of after the update, which halves the growth steps.
TEST(PrecisionTest, GradientsAreDividedByTheScaleThatTheyWereMadeWith) {
  Config config = config_of(DType::fp16, 1);
  config.precision.loss_scaler.static_scale = 1;
  const Outcome fixed = train(config, toy);
  config.precision.loss_scaler = {.initial_scale_power = 0, .window = 1};
  const Outcome growing = train(config, toy);
  EXPECT_EQ(growing.results.back().loss_scale, 4);
  EXPECT_EQ(growing.results.back().grad_norm, fixed.results.back().grad_norm);
  EXPECT_EQ(growing.hash, fixed.hash);
}

TEST(PrecisionTest, AnOverflowOnOneRankSkipsTheStepOnAll) {
  for (int stage : {0, 1, 2, 3}) {
    Config config = config_of(DType::fp16, stage);
    config.precision.loss_scaler.hysteresis = 1;
    const auto overflow_at_2 = [](Engine& engine, Communicator& comm, int64_t step) {
      if (step != 2) return toy(engine, comm, step);
      constant("h.1.weight", [](int rank) { return rank == 1 ? INFINITY : 0.5F; })(engine, comm, 0);
    };
    const Outcome two = train(config, toy, 2);
    const Outcome three = train(config, overflow_at_2, 3);
    EXPECT_FALSE(three.results[2].applied);
    EXPECT_FALSE(std::isfinite(three.results[2].grad_norm)) << three.results[2].grad_norm;
    EXPECT_EQ(three.results[2].loss_scale, 16);
    EXPECT_EQ(three.hash, two.hash);
    EXPECT_EQ(three.progress.step_count, 2);
    EXPECT_EQ(three.progress.skipped_steps, 1);
    EXPECT_EQ(three.progress.loss_scaler->cur_scale, 8);
    // The moments and the bias correction did not move either: going on equals never having failed.
    const auto with = [](Engine& engine, Communicator& comm, int64_t step) {
      if (step == 0) return constant("h.0.bias", NAN)(engine, comm, 0);
      toy(engine, comm, step - 1);
    };
    EXPECT_EQ(train(config, with, 4).hash, train(config, toy, 3).hash) << "stage " << stage;
  }
}

std::string error_at_minimum(const Config& config, const Micro& micro) {
  std::vector<std::string> errors(2);
  ToyJob job{config};
  for (ParameterSpec& spec : job.specs) {
    if (spec.name == "h.0.bias") spec.name = "h.0.größe";
  }
  run_engines(job, [&](Engine& engine, Communicator& comm) {
    errors[static_cast<size_t>(comm.rank())] = error_of<NumericError>([&] {
      for (int64_t step = 0; step < 20; ++step) {
        micro(engine, comm, step);
        engine.step();
      }
    });
  });
  EXPECT_EQ(errors[0], errors[1]);
  return errors[0];
}

TEST(PrecisionTest, TheErrorAtTheMinimumScaleNamesParameterRankAndKind) {
  for (const int stage : {0, 3}) {
    const Config config = config_of(DType::fp16, stage);
    const Micro nan_on_rank_1 =
        constant("h.0.größe", [](int rank) { return rank == 1 ? NAN : 1.0F; });
    EXPECT_THAT(error_at_minimum(config, nan_on_rank_1),
                HasAll("loss scale 1 is already the minimum", "h.0.größe", "nan on rank 1"));
    EXPECT_THAT(error_at_minimum(config, constant("expert.weight", 1e30F)),
                HasAll("expert.weight", "inf on rank 0"));
    // Neither rank's gradient is infinite, but fp16 cannot hold the sum.
    EXPECT_THAT(error_at_minimum(config, constant("expert.weight", 60000.0F)),
                HasSubstr("not their sum in fp16"));
  }
}

TEST(PrecisionTest, OnlyBf16AppliesWhatIsNotFiniteAndOnlyWhenAsked) {
  for (const auto& [dtype, check] : each(kFp32Bf16, kEither)) {
    Config config = config_of(dtype, 1);
    config.precision.check_grad_overflow = check;
    EXPECT_EQ(step_with(config, NAN).applied, dtype == DType::bf16 && !check);
  }
}

TEST(PrecisionTest, GradientsTravelInTheCommunicationDtype) {
  // 1 + 2^-10 is 1 in bf16.
  Config config = config_of(DType::fp32, 2);
  EXPECT_EQ(step_with(config, 1.0F + 0x1p-10F).grad_norm, 1 + 0x1p-10);
  config.precision.communication_dtype = DType::bf16;
  EXPECT_EQ(step_with(config, 1.0F + 0x1p-10F).grad_norm, 1.0);
}

// Factors of two are exact, so where the division happens cannot show; how often it happens would.
TEST(PrecisionTest, DividingBeforeTheSumGivesTheSameMean) {
  for (int stage = 0; stage <= 3; ++stage) {
    Config config = config_of(DType::fp32, stage);
    const uint64_t expected = train(config, toy).hash;
    for (const auto& [prescales, predivided] : each(kEither, std::array{1.0, 4.0})) {
      config.precision.prescale_gradients = prescales;
      config.precision.gradient_predivide_factor = predivided;
      EXPECT_EQ(train(config, toy).hash, expected) << stage << prescales << predivided;
    }
  }
}

TEST(PrecisionTest, PrescalingKeepsAnFp16SumFinite) {
  Config config = config_of(DType::fp16, 2);
  config.precision.loss_scaler.static_scale = 1;
  EXPECT_FALSE(step_with(config, 40000.0F).applied);
  config.precision.prescale_gradients = true;
  EXPECT_EQ(step_with(config, 40000.0F).grad_norm, 40000.0);
}

TEST(PrecisionTest, ASumIsNotDivided) {
  Config config = config_of(DType::fp32, 2);
  EXPECT_EQ(step_with(config, 3.0F).grad_norm, 3.0);
  config.precision.gradient_reduction = GradientReduction::sum;
  EXPECT_EQ(step_with(config, 3.0F).grad_norm, 6.0);
}

// With and without room for a sum of reduced gradients; sums of ToyModel's gradients are exact.
TEST(PrecisionTest, BoundariesSetByTheCallerAccumulateLikeConfiguredOnes) {
  const auto two_micro_steps = [](bool sets_boundaries) -> Micro {
    return [=](Engine& engine, Communicator& comm, int64_t step) {
      for (const int micro : {0, 1}) {
        BatchRule rule = engine.batch().rule;
        rule.boundary = micro == 1;
        if (sets_boundaries) engine.set_batch_rule(rule);
        EXPECT_EQ(ToyModel::micro_step(engine, comm.rank(), micro, step), micro == 1);
      }
    };
  };
  for (int stage : {0, 1, 2, 3}) {
    Config config = config_of(DType::fp32, stage);
    config.gradient_clipping = 0;
    const Outcome whole = train(config, two_micro_steps(true));
    config.batch.accumulation_steps = 2;
    const Outcome halved = train(config, two_micro_steps(false));
    EXPECT_EQ(whole.results[0].grad_norm, 2 * halved.results[0].grad_norm) << "stage " << stage;
    EXPECT_EQ(train(config, two_micro_steps(true)).hash, halved.hash) << "stage " << stage;
  }
}

TEST(PrecisionTest, TheLossScalerResumes) {
  Config config = config_of(DType::fp16, 2);
  config.precision.loss_scaler.window = 1;
  run_engines({config}, [&](Engine& engine, Communicator& comm) {
    for (int64_t step = 0; step < 3; ++step) {
      toy(engine, comm, step);
      engine.step();
    }
    const auto copy =
        Engine::create(config, engine.device(), comm, toy_specs(), ToyModel::groups());
    copy->states().set_progress(engine.states().progress());
    EXPECT_EQ(copy->loss_scale(), engine.loss_scale());
    EXPECT_GT(copy->loss_scale(), 16);
  });
}

// The ranks add up 1 + 2^-9 on each of two micro-steps: fp16, with 10 bits for the fraction, has
// the sums 2 + 2^-8 and 4 + 2^-7; bf16, with 7, rounds them to 2 and 4.
TEST(GradientDtype, IsTheOneOfTheSums) {
  for (const auto& [stage, groups] : each(kStages, kEither)) {
    if (groups && stage == 0) continue;
    for (const DType kept : {DType::fp32, DType::fp16, DType::bf16}) {
      Config config = config_of(DType::fp32, stage);
      config.precision.grad_accum_dtype = kept;
      config.zero.shard_group_size = groups ? 1 : 0;
      config.batch.accumulation_steps = 2;
      const double expected = kept == DType::bf16 ? 1.0 : 1.0 + 0x1p-9;
      EXPECT_EQ(step_with(config, 1.0F + 0x1p-9F).grad_norm, expected)
          << stage << ' ' << groups << ' ' << name_of(kept);
    }
  }
}

// 2^17 is more than fp16 has.
TEST(GradientDtype, SkipsTheStepForWhatItCannotHold) {
  Config config = config_of(DType::bf16, 2);
  config.precision.grad_accum_dtype = DType::fp16;
  EXPECT_EQ(step_with(config, 8.0F).grad_norm, 8.0);
  EXPECT_FALSE(step_with(config, 0x1p17F).applied);
}

}  // namespace
}  // namespace zerorun::testing::precision
