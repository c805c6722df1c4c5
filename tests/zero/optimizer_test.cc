// Every optimizer, and those that are the caller's.
#include "tests/zero/toy_run.h"

namespace zerorun::testing::optimizer {
namespace {

class EveryOptimizer : public ::testing::TestWithParam<Rule> {};

// Bytes of optimizer memory per element, from its definition.
double bytes_per_element(const Rule& rule, DType dtype, bool use_muon) {
  const double master = dtype == DType::fp32 || rule.master_is_param ? 0 : 4;
  const auto state = static_cast<double>(size_of(rule.state_dtype));
  if (rule.type == "AdamW8bit") return master + 2 * (1 + 4.0 / 256);
  if (rule.type == "SGD") return master + (rule.momentum > 0 ? state : 0);
  if (rule.type == "Adagrad" || rule.type == "Lion") return master + state;
  if (rule.type == "Muon" && use_muon) return master + state;
  return master + 2 * state;
}

TEST_P(EveryOptimizer, HoldsTheBytesOfItsStates) {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    for (const int stage : {0, 2}) {
      std::vector<ParameterSpec> model;
      for (int i = 0; i < 20; ++i) {
        const std::string name = "h." + std::to_string(i);
        model.push_back({name + ".weight", {128, 96}, name, 0, true, "", true});
        model.push_back({name + ".table", {128, 96}, name, 0, true, "", false});
      }
      Config config = toy_config(stage, dtype);
      GetParam().set(config);
      config.zero.reduce_bucket_size = 1 << 20;
      run_engines({config, 2, {}, model}, [&](Engine& engine, Communicator&) {
        const double elements = 20 * 128 * 96 / (stage == 0 ? 1.0 : 2.0);
        const double expected = elements * (bytes_per_element(GetParam(), dtype, true) +
                                            bytes_per_element(GetParam(), dtype, false));
        EXPECT_NEAR(static_cast<double>(live_bytes(engine, MemoryCategory::optimizer)), expected,
                    0.01 * expected);
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, EveryOptimizer, ::testing::ValuesIn(every_rule()), name_of_rule);

TEST(MuonMatrices, MustBeMatrices) {
  ToyJob job{toy_config(0), 1};  // AdamW has no use for the mark
  job.specs[4].use_muon = true;
  EXPECT_EQ(refusal(job), "");
  job.config.optimizer.type = "Muon";
  EXPECT_THAT(refusal(job),
              HasSubstr("h.1.weight: use_muon is for matrices, this has 1 dimensions"));
}

Config config_of(int stage, const std::string& optimizer) {
  Config config = toy_config(stage);
  config.optimizer.type = optimizer;
  return config;
}

TEST(CallerOptimizer, UpdatesShardsAsTheEnginesOwnWould) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const bool on_host : {false, true}) {
      if (on_host && stage == 0) continue;
      Config config = on_host ? offloaded(base_config(stage), 0.5) : base_config(stage);
      config.precision.grad_accum_dtype = DType::fp32;  // as a caller's optimizer gets them
      ToyJob job{.config = config, .groups = {{"a", 0.25F, 0.0F}, {"b", 0.25F, 0.0F}}};
      const auto train = [&](const std::string& type, const Engine::ShardUpdate& update) {
        job.config.optimizer.type = type;
        return train_by(job, 3, [&](Engine& engine, Communicator& comm, int64_t step) {
          ToyModel::micro_step(engine, comm.rank(), 0, step);
          return update ? engine.step(update) : engine.step();
        });
      };
      EXPECT_EQ(train(std::string(kExternalOptimizer), descent(0.25F)), train("SGD", {}))
          << "stage " << stage << ", half on the host " << on_host;
    }
  }
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
        EXPECT_THAT([&] { step(fail_on_rank_1); },
                    ThrowsMessage<Error>(HasSubstr("rank 1 of 2: no state for this shard")));
      }
      EXPECT_EQ(engine.states().progress().step_count, 0);
      step(descent(0.01F));
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
    const int64_t elements = since(before, comm)[Collective::all_gather].elements;
    if (comm.rank() == 0) gathered = static_cast<double>(elements) / (1 << 20);
  });
  return gathered;
}

TEST(CallerOptimizer, ARefreshAtStage0GathersNothingTwice) {
  EXPECT_EQ(gathered_by_refresh("AdamW"), 3);  // master and states; parameters are cast from it
  EXPECT_EQ(gathered_by_refresh(std::string(kExternalOptimizer)), 1);  // parameters
}

}  // namespace
}  // namespace zerorun::testing::optimizer
