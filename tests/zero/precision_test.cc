// Loss scaling, dtypes on the wire and of what is kept, divisions around the sum, and optimizers of
// the caller's.
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

// Backward that writes `value` as every element of one parameter's gradient, and 0 elsewhere.
void write_gradient(Engine& engine, const std::string& name, float value) {
  write_gradients(engine, [&](ParameterId id, int64_t) {
    return id == engine.parameter_id(name) ? value : 0.0F;
  });
  engine.end_micro_step();
}

struct Outcome {
  uint64_t hash = 0;
  std::vector<StepResult> results;
  EngineProgress progress;
};

using Micro = std::function<void(Engine&, Communicator&, int64_t step)>;

Outcome train(const Config& config, const Micro& micro, int64_t steps = 4) {
  Outcome outcome;
  run_engines({config}, [&](Engine& engine, Communicator& comm) {
    Outcome own;
    for (int64_t step = 0; step < steps; ++step) {
      micro(engine, comm, step);
      own.results.push_back(engine.step());
    }
    own.hash = engine.states().parameter_hash();
    own.progress = engine.states().progress();
    if (comm.rank() == 0) outcome = own;
  });
  return outcome;
}

void toy(Engine& engine, Communicator& comm, int64_t step) {
  ToyModel::micro_step(engine, comm.rank(), 0, step);
}

// Steps in which one gradient is `value`, and the others 0.
Micro constant(const std::string& name, float value) {
  return [=](Engine& engine, Communicator&, int64_t) { write_gradient(engine, name, value); };
}

TEST(PrecisionTest, TheLossScaleLeavesNoTraceInNormAndUpdate) {
  Config config = config_of(DType::fp16, 2);
  config.precision.loss_scaler.static_scale = 1;
  const Outcome plain = train(config, toy);
  config.precision.loss_scaler.static_scale = 64;
  const Outcome scaled = train(config, toy);
  EXPECT_EQ(scaled.results[0].loss_scale, 64);
  EXPECT_EQ(scaled.results[0].grad_norm, plain.results[0].grad_norm);
  EXPECT_EQ(scaled.hash, plain.hash);
}

// DeepSpeed 0.19 divides by the scale of after the update, which halves the growth steps.
TEST(PrecisionTest, GradientsAreDividedByTheScaleThatTheyWereMadeWith) {
  Config config = config_of(DType::fp16, 1);
  config.precision.loss_scaler.static_scale = 1;
  const Outcome fixed = train(config, toy);
  config.precision.loss_scaler = {.initial_scale_power = 0, .window = 1};
  const Outcome growing = train(config, toy);
  EXPECT_GT(growing.results.back().loss_scale, 1);
  EXPECT_EQ(growing.hash, fixed.hash);
}

TEST(PrecisionTest, AnOverflowOnOneRankSkipsTheStepOnAll) {
  for (int stage : {0, 1, 2, 3}) {
    Config config = config_of(DType::fp16, stage);
    config.precision.loss_scaler.hysteresis = 1;
    const auto overflow_at_2 = [](Engine& engine, Communicator& comm, int64_t step) {
      if (step != 2) return toy(engine, comm, step);
      write_gradient(engine, "h.1.weight",
                     comm.rank() == 1 ? std::numeric_limits<float>::infinity() : 0.5F);
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
      if (step == 0) return write_gradient(engine, "h.0.bias", std::nanf(""));
      toy(engine, comm, step - 1);
    };
    EXPECT_EQ(train(config, with, 4).hash, train(config, toy, 3).hash) << "stage " << stage;
  }
}

std::string error_at_minimum(const Config& config, const Micro& micro) {
  std::vector<std::string> errors(2);
  run_engines({config}, [&](Engine& engine, Communicator& comm) {
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
    const auto nan_on_rank_1 = [](Engine& engine, Communicator& comm, int64_t) {
      write_gradient(engine, "h.0.bias", comm.rank() == 1 ? std::nanf("") : 1.0F);
    };
    EXPECT_THAT(error_at_minimum(config, nan_on_rank_1),
                AllOf(HasSubstr("loss scale 1 is already the minimum"), HasSubstr("h.0.bias"),
                      HasSubstr("nan on rank 1")));
    EXPECT_THAT(error_at_minimum(config, constant("expert.weight", 1e30F)),
                AllOf(HasSubstr("expert.weight"), HasSubstr("inf on rank 0")));
    // Neither rank's gradient is infinite, but fp16 cannot hold the sum.
    EXPECT_THAT(error_at_minimum(config, constant("expert.weight", 60000.0F)),
                HasSubstr("not their sum in fp16"));
  }
}

TEST(PrecisionTest, AStaticScaleSkipsForever) {
  Config config = config_of(DType::fp16, 2);
  config.precision.loss_scaler.static_scale = 1;
  EXPECT_EQ(train(config, constant("h.0.bias", 1e9F), 20).progress.skipped_steps, 20);
}

TEST(PrecisionTest, Bf16AppliesWhatIsNotFiniteOnlyWhenAsked) {
  Config config = config_of(DType::bf16, 1);
  const Micro nan = constant("h.0.bias", std::nanf(""));
  EXPECT_FALSE(train(config, nan, 1).results[0].applied);
  config.precision.check_grad_overflow = false;
  EXPECT_TRUE(train(config, nan, 1).results[0].applied);
}

TEST(PrecisionTest, GradientsTravelInTheCommunicationDtype) {
  // 1 + 2^-10 is 1 in bf16.
  Config config = config_of(DType::fp32, 2);
  const Micro micro = constant("h.0.bias", 1.0F + 0x1p-10F);
  EXPECT_EQ(train(config, micro, 1).results[0].grad_norm, 1 + 0x1p-10);
  config.precision.communication_dtype = DType::bf16;
  EXPECT_EQ(train(config, micro, 1).results[0].grad_norm, 1.0);
}

// Factors of two are exact, so where the division happens cannot show; how often it happens would.
TEST(PrecisionTest, DividingBeforeTheSumGivesTheSameMean) {
  for (int stage = 0; stage <= 3; ++stage) {
    Config config = config_of(DType::fp32, stage);
    const uint64_t expected = train(config, toy).hash;
    for (const bool prescales : {false, true}) {
      for (const double predivided : {1.0, 4.0}) {
        config.precision.prescale_gradients = prescales;
        config.precision.gradient_predivide_factor = predivided;
        EXPECT_EQ(train(config, toy).hash, expected) << stage << prescales << predivided;
      }
    }
  }
}

TEST(PrecisionTest, PrescalingKeepsAnFp16SumFinite) {
  Config config = config_of(DType::fp16, 2);
  config.precision.loss_scaler.static_scale = 1;
  const Micro micro = constant("h.0.bias", 40000.0F);
  EXPECT_FALSE(train(config, micro, 1).results[0].applied);
  config.precision.prescale_gradients = true;
  EXPECT_EQ(train(config, micro, 1).results[0].grad_norm, 40000.0);
}

TEST(PrecisionTest, ASumIsNotDivided) {
  Config config = config_of(DType::fp32, 2);
  const Outcome mean = train(config, toy, 1);
  config.precision.gradient_reduction = GradientReduction::sum;
  EXPECT_EQ(train(config, toy, 1).results[0].grad_norm, 2 * mean.results[0].grad_norm);
}

// With and without room for a sum of reduced gradients; sums of ToyModel's gradients are exact.
TEST(PrecisionTest, BoundariesSetByTheCallerAccumulateLikeConfiguredOnes) {
  const auto two_micro_steps = [](Engine& engine, Communicator& comm, int64_t step) {
    BatchRule rule = engine.batch().rule;
    rule.boundary = false;
    engine.set_batch_rule(rule);
    EXPECT_FALSE(ToyModel::micro_step(engine, comm.rank(), 0, step));
    rule.boundary = true;
    engine.set_batch_rule(rule);
    EXPECT_TRUE(ToyModel::micro_step(engine, comm.rank(), 1, step));
  };
  const auto configured = [](Engine& engine, Communicator& comm, int64_t step) {
    EXPECT_FALSE(ToyModel::micro_step(engine, comm.rank(), 0, step));
    EXPECT_TRUE(ToyModel::micro_step(engine, comm.rank(), 1, step));
  };
  for (int stage : {0, 1, 2, 3}) {
    Config config = config_of(DType::fp32, stage);
    config.gradient_clipping = 0;
    const Outcome whole = train(config, two_micro_steps);
    config.batch.accumulation_steps = 2;
    const Outcome halved = train(config, configured);
    EXPECT_EQ(whole.results[0].grad_norm, 2 * halved.results[0].grad_norm) << "stage " << stage;
    EXPECT_EQ(train(config, two_micro_steps).hash, halved.hash) << "stage " << stage;
  }
}

// The mean over `samples` of the batch's samples, from `first` on: an exact sum.
void write_mean(Engine& engine, int rank, int64_t step, int64_t first, int64_t samples) {
  write_gradients(engine, [&](ParameterId id, int64_t i) {
    float sum = 0;
    for (int64_t s = first; s < first + samples; ++s) sum += ToyModel::noise(id, i, rank, s, step);
    return sum / static_cast<float>(samples);
  });
}

TEST(PrecisionTest, FourMicroStepsOfTwoSamplesEqualTwoOfFour) {
  const auto batch_in = [](int64_t micro_steps) -> Micro {
    return [micro_steps](Engine& engine, Communicator& comm, int64_t step) {
      const int64_t samples = 8 / micro_steps;
      for (int64_t micro = 0; micro < micro_steps; ++micro) {
        write_mean(engine, comm.rank(), step, micro * samples, samples);
        EXPECT_EQ(engine.end_micro_step(), micro + 1 == micro_steps);
      }
    };
  };
  for (int stage : {0, 1, 2, 3}) {
    Config config = config_of(DType::fp32, stage);
    config.batch.accumulation_steps = 4;
    const Outcome four = train(config, batch_in(4));
    config.batch.accumulation_steps = 2;
    const Outcome two = train(config, batch_in(2));
    EXPECT_EQ(four.hash, two.hash) << "stage " << stage;
    EXPECT_EQ(four.results.back().grad_norm, two.results.back().grad_norm);
  }
}

// Plain SGD outside of the engine; the reference follows rank 0's parameters in double.
TEST(PrecisionTest, AnOptimizerOfTheCallersUpdatesTheShards) {
  std::vector<uint64_t> hashes;
  for (int stage : {0, 1, 2, 3}) {
    Config config = config_of(DType::bf16, stage);
    config.optimizer.type = kExternalOptimizer;
    config.gradient_clipping = 0.5;
    hashes.push_back(hash_after({config}, [&](Engine& engine, Communicator& comm) {
      for (int64_t step = 0; step < 3; ++step) {
        toy(engine, comm, step);
        double squares = 0;
        const StepResult result = engine.step([&](std::span<const StateInterval> parts) {
          for (const StateInterval& part : parts) {
            ASSERT_EQ(part.grad.dtype, DType::fp32);
            for (int64_t i = 0; i < part.numel; ++i) {
              squares += std::pow(double{part.grad.as<float>()[i]}, 2);
              part.master.as<float>()[i] -= 0.25F * part.grad.as<float>()[i];
            }
          }
        });
        EXPECT_GT(result.grad_norm, 0.5);
        float total = static_cast<float>(squares);
        const TensorView view{reinterpret_cast<std::byte*>(&total), 1, DType::fp32};
        comm.all_reduce(view, view, ReduceOp::sum, Output::overwrite,
                        engine.device().inline_stream(), "")
            .synchronize();
        EXPECT_NEAR(std::sqrt(total), 0.5, 1e-4);  // clipped
      }
      EXPECT_TRUE(engine.states().state_specs(0).empty());
    }));
  }
  EXPECT_EQ(hashes, std::vector<uint64_t>(4, hashes[0]));
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

// The dtype in which reduced gradients are kept and added up (data_types.grad_accum_dtype).

// A step of two ranks on whose every micro-step one gradient is `value`, and the others 0.
StepResult step_with(const Config& config, float value) {
  StepResult result;
  run_engines({config}, [&](Engine& engine, Communicator& comm) {
    for (int64_t micro_step = 0; micro_step < config.batch.accumulation_steps; ++micro_step) {
      write_gradients(engine, [&](ParameterId id, int64_t) {
        return id == engine.parameter_id("h.0.bias") ? value : 0.0F;
      });
      engine.end_micro_step();
    }
    const StepResult own = engine.step();
    if (comm.rank() == 0) result = own;
  });
  return result;
}

Config config_of(DType params, int stage, DType kept) {
  Config config;
  config.precision.param_dtype = params;
  config.precision.grad_accum_dtype = kept;
  config.zero.stage = stage;
  config.batch.accumulation_steps = 1;
  return config;
}

// The ranks add up 1 + 2^-9 on each of two micro-steps: fp16, with 10 bits for the fraction, has
// the sums 2 + 2^-8 and 4 + 2^-7; bf16, with 7, rounds them to 2 and 4.
TEST(GradientDtype, IsTheOneOfTheSums) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const bool groups : {false, true}) {
      if (groups && stage == 0) continue;
      for (const DType kept : {DType::fp32, DType::fp16, DType::bf16}) {
        Config config = config_of(DType::fp32, stage, kept);
        config.zero.shard_group_size = groups ? 1 : 0;
        config.batch.accumulation_steps = 2;
        const double expected = kept == DType::bf16 ? 1.0 : 1.0 + 0x1p-9;
        EXPECT_EQ(step_with(config, 1.0F + 0x1p-9F).grad_norm, expected)
            << stage << ' ' << groups << ' ' << name_of(kept);
      }
    }
  }
}

// 2^17 is more than fp16 has.
TEST(GradientDtype, SkipsTheStepForWhatItCannotHold) {
  const Config config = config_of(DType::bf16, 2, DType::fp16);
  EXPECT_EQ(step_with(config, 8.0F).grad_norm, 8.0);
  EXPECT_FALSE(step_with(config, 0x1p17F).applied);
}

}  // namespace
}  // namespace zerorun::testing::precision
