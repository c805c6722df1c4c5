// Every optimizer, and those that are the caller's.
#include "tests/zero/toy_run.h"

namespace zerorun::testing::optimizer {
namespace {

struct Setting {
  Rule rule;
  int world_size = 2;
  int stage = 0;
  DType dtype = DType::bf16;
  int64_t bucket_size = 1 << 20;
  bool same_gradients = false;  // on every rank
};

Config config_of(const Setting& setting) {
  Config config = toy_config(setting.stage, setting.dtype);
  setting.rule.set(config);
  config.zero.reduce_bucket_size = setting.bucket_size;
  return config;
}

uint64_t train(const Setting& setting) {
  const ToyJob job{config_of(setting), setting.world_size};
  return hash_after(job, [&](Engine& engine, Communicator& comm) {
    const uint64_t before = engine.states().parameter_hash();
    // A skipped step, whose gradients stay in the buckets' memory and padding.
    ToyModel::micro_step(engine, 0, 0, 0, ToyModel::everything, INFINITY);
    EXPECT_FALSE(engine.step().applied);
    for (int64_t step = 0; step < 4; ++step) {
      ToyModel::micro_step(engine, setting.same_gradients ? 0 : comm.rank(), 0, step);
      EXPECT_TRUE(engine.step().applied);
    }
    EXPECT_NE(engine.states().parameter_hash(), before);
  });
}

class EveryOptimizer : public ::testing::TestWithParam<Rule> {};

// Gradients that are the same on every rank have the same mean, exactly.
TEST_P(EveryOptimizer, DoesNotDependOnTheWorldSize) {
  Setting setting{.rule = GetParam(), .world_size = 1, .same_gradients = true};
  const uint64_t expected = train(setting);
  for (const int world_size : {2, 4}) {
    for (const int stage : {1, 3}) {
      setting.world_size = world_size;
      setting.stage = stage;
      EXPECT_EQ(train(setting), expected) << "world " << world_size << " stage " << stage;
    }
  }
}

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
      const Config config = config_of({.rule = GetParam(), .stage = stage, .dtype = dtype});
      run_engines({config, 2, {}, model}, [&](Engine& engine, Communicator&) {
        const double elements = 20 * 128 * 96 / (stage == 0 ? 1.0 : 2.0);
        const double expected = elements * (bytes_per_element(GetParam(), dtype, true) +
                                            bytes_per_element(GetParam(), dtype, false));
        const MemoryUse held = engine.device().memory_use(MemoryCategory::optimizer);
        EXPECT_NEAR(static_cast<double>(held.live_bytes), expected, 0.01 * expected);
      });
    }
  }
}

// Buckets of several parameters share memory in turn; what one leaves between the parameters of
// another is not part of any value that covers several elements.
TEST_P(EveryOptimizer, PaddingLeavesNoTrace) {
  std::vector<ParameterSpec> model;
  for (int i = 0; i < 24; ++i) {
    const int64_t numel = 100 + 37 * i * i % 700;
    model.push_back({"p" + std::to_string(i), {numel}, "all", 0, true, "", false});
  }
  const auto train_padded = [&](int stage) {
    const Setting setting{.rule = GetParam(), .stage = stage, .bucket_size = 1500};
    const ToyJob job{config_of(setting), 1, {}, model, {ParameterGroup{}}};
    return hash_after(job, [](Engine& engine, Communicator&) {
      for (int step = 0; step < 4; ++step) {
        const float value = step == 0 ? std::numeric_limits<float>::infinity() : 1.0F;
        write_gradients(engine, [&](ParameterId id, int64_t i) {
          return value * (1.0F + static_cast<float>((id + i) % 7));
        });
        engine.end_micro_step();
        EXPECT_EQ(engine.step().applied, step > 0);
      }
    });
  };
  EXPECT_EQ(train_padded(2), train_padded(0));
}

INSTANTIATE_TEST_SUITE_P(Rules, EveryOptimizer, ::testing::ValuesIn(every_rule()), name_of_rule);

TEST(MuonMatrices, MustBeMatrices) {
  ToyJob job{config_of({.rule = {"AdamW"}}), 1};  // which has no use for the mark
  job.specs[4].use_muon = true;
  EXPECT_EQ(refusal(job), "");
  job.config.optimizer.type = "Muon";
  EXPECT_THAT(refusal(job),
              HasSubstr("h.1.weight: use_muon is for matrices, this has 1 dimensions"));
}

// Steps whose optimizer is the caller's, and masters that are written between steps.

Config config_of(int stage, const std::string& optimizer) {
  Config config = toy_config(stage);
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
