// Steps whose optimizer is the caller's, and masters that are written between steps.

#include "tests/common.h"
#include "tests/zero/toy_run.h"
#include "zerorun/engine.h"
#include "zerorun/error.h"

namespace zerorun::caller_optimizer {
namespace {

using testing::run_engines;
using testing::ToyModel;

Config config_of(int stage, const std::string& optimizer) {
  Config config;
  config.batch.accumulation_steps = 1;
  config.precision.param_dtype = DType::bf16;
  config.zero.stage = stage;
  config.optimizer.type = optimizer;
  return config;
}

TEST(CallerOptimizer, AnErrorOnOneRankIsAnErrorOnAllAndTheStepDoesNotCount) {
  for (int stage = 0; stage <= 3; ++stage) {
    const Config config = config_of(stage, std::string(kExternalOptimizer));
    run_engines({config}, [&](Engine& engine, Communicator& comm) {
      const auto step = [&](const Engine::ShardUpdate& update) {
        ToyModel::micro_step(engine, comm.rank(), 0, 0);
        engine.step(update);
      };
      const auto fail_on_rank_1 = [&](std::span<const StateInterval> /*parts*/) {
        if (comm.rank() == 1) throw std::out_of_range("no state for this shard");
      };
      if (comm.rank() == 1) {
        EXPECT_THROW(step(fail_on_rank_1), std::out_of_range);  // its own error, as it was
      } else {
        EXPECT_THAT(
            [&] { step(fail_on_rank_1); },
            ::testing::ThrowsMessage<Error>(HasSubstr("rank 1 of 2: no state for this shard")));
      }
      EXPECT_EQ(engine.states().progress().step_count, 0);
      step(testing::descent(0.01F));
      EXPECT_EQ(engine.states().progress().step_count, 1);
      engine.states().parameter_hash();  // throws when replicas differ
    });
  }
}

// Elements that all_gather moves to refresh the parameters, in units of the model's size.
double gathered_by_refresh(const std::string& optimizer) {
  double gathered = 0;
  const std::vector<ParameterSpec> specs = {{"w", {1 << 20}, "m"}};
  run_engines({config_of(0, optimizer), 2, {}, specs}, [&](Engine& engine, Communicator& comm) {
    const CommStats before = comm.stats();
    engine.states().refresh_from_masters();
    const int64_t elements = testing::since(before, comm)[Collective::all_gather].elements;
    if (comm.rank() == 0) gathered = static_cast<double>(elements) / (1 << 20);
  });
  return gathered;
}

TEST(CallerOptimizer, ARefreshAtStage0GathersNothingTwice) {
  EXPECT_EQ(gathered_by_refresh("AdamW"), 3);  // master and states; parameters are cast from it
  EXPECT_EQ(gathered_by_refresh(std::string(kExternalOptimizer)), 1);  // parameters
}

}  // namespace
}  // namespace zerorun::caller_optimizer
