// The dtype in which reduced gradients are kept and added up (data_types.grad_accum_dtype).

#include "tests/common.h"
#include "tests/harness.h"
#include "tests/zero/toy_gradients.h"
#include "tests/zero/toy_run.h"
#include "zerorun/engine.h"

namespace zerorun {
namespace {

using testing::run_engines;
using testing::ToyModel;

// A step of two ranks on whose every micro-step one gradient is `value`, and the others 0.
StepResult step_with(const Config& config, float value) {
  StepResult result;
  run_engines({config}, [&](Engine& engine, Communicator& comm) {
    for (int64_t micro_step = 0; micro_step < config.batch.accumulation_steps; ++micro_step) {
      testing::write_gradients(engine, [&](ParameterId id, int64_t) {
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
}  // namespace zerorun
