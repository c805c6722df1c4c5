

#include "tests/common.h"
#include "tests/harness.h"
#include "tests/zero/toy_gradients.h"
#include "tests/zero/toy_run.h"
#include "zerorun/engine.h"
#include "zerorun/error.h"

namespace zerorun::optimizer {
namespace {

using testing::run_ranks;
using testing::ToyModel;

struct Rule {
  std::string type;
  bool master_is_param = false;
  DType state_dtype = DType::fp32;
  double momentum = 0.0;

  std::string name() const {
    return type + (master_is_param ? "_16_bit_master" : "") +
           (state_dtype == DType::fp32 ? "" : "_16_bit_states") + (momentum > 0 ? "_momentum" : "");
  }
};

std::vector<Rule> rules() {
  std::vector<Rule> all = {{"Adam"}, {"AdamW"}, {"AdamW8bit"},
                           {"SGD"},  {"SGD"},   {"Adagrad"},
                           {"Lion"}, {"Lamb"},  {"Muon", false, DType::fp32, 0.95}};
  all[4].momentum = 0.9;
  for (const std::string type : {"AdamW", "SGD", "Adagrad", "Lion", "Lamb", "Muon"}) {
    all.push_back({type, true, DType::bf16, 0.9});
  }
  all.push_back({"AdamW", true, DType::fp32});
  all.push_back({"AdamW", false, DType::bf16});
  all.push_back({"AdamW8bit", true, DType::fp32});
  return all;
}

struct Setting {
  Rule rule;
  int world_size = 2;
  int stage = 0;
  DType dtype = DType::bf16;
  int64_t bucket_size = 1 << 20;
  bool overlap = false;
  bool same_gradients = false;  // on every rank
};

Config config_of(const Setting& setting) {
  Config config;
  config.batch.accumulation_steps = 1;
  config.precision.param_dtype = setting.dtype;
  config.precision.master_is_param = setting.rule.master_is_param;
  config.precision.state_dtype = setting.rule.state_dtype;
  config.optimizer.type = setting.rule.type;
  config.optimizer.momentum = setting.rule.momentum;
  config.optimizer.nesterov = setting.rule.momentum > 0;
  config.zero.stage = setting.stage;
  config.zero.reduce_bucket_size = setting.bucket_size;
  config.zero.overlap_comm = setting.overlap;
  config.zero.param_persistence_threshold = 100;
  return config;
}

bool everything(const std::string& /*module*/, int /*rank*/) { return true; }

uint64_t train(const Setting& setting) {
  const testing::ToyJob job{config_of(setting), setting.world_size};
  return testing::hash_after(job, [&](Engine& engine, Communicator& comm) {
    const uint64_t before = engine.states().parameter_hash();
    // A skipped step, whose gradients stay in the buckets' memory and padding.
    ToyModel::micro_step(engine, 0, 0, 0, everything, std::numeric_limits<float>::infinity());
    EXPECT_FALSE(engine.step().applied);
    for (int64_t step = 0; step < 4; ++step) {
      ToyModel::micro_step(engine, setting.same_gradients ? 0 : comm.rank(), 0, step);
      EXPECT_TRUE(engine.step().applied);
    }
    EXPECT_NE(engine.states().parameter_hash(), before);
  });
}

class EveryOptimizer : public ::testing::TestWithParam<Rule> {};

TEST_P(EveryOptimizer, HasTheSameBitsAtEveryStageAndBucketSize) {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    const uint64_t expected = train({.rule = GetParam(), .dtype = dtype});
    for (int stage = 0; stage <= 3; ++stage) {
      for (const int64_t bucket_size : {1, 1000, 1 << 20}) {
        for (const bool overlap : {false, true}) {
          const Setting setting{.rule = GetParam(),
                                .stage = stage,
                                .dtype = dtype,
                                .bucket_size = bucket_size,
                                .overlap = overlap};
          EXPECT_EQ(train(setting), expected)
              << name_of(dtype) << " stage " << stage << " bucket " << bucket_size;
        }
      }
    }
  }
}

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
      testing::run_engines({config, 2, {}, model}, [&](Engine& engine, Communicator&) {
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
    const testing::ToyJob job{config_of(setting), 1, {}, model, {ParameterGroup{}}};
    return testing::hash_after(job, [](Engine& engine, Communicator&) {
      for (int step = 0; step < 4; ++step) {
        const float value = step == 0 ? std::numeric_limits<float>::infinity() : 1.0F;
        testing::write_gradients(engine, [&](ParameterId id, int64_t i) {
          return value * (1.0F + static_cast<float>((id + i) % 7));
        });
        engine.end_micro_step();
        EXPECT_EQ(engine.step().applied, step > 0);
      }
    });
  };
  EXPECT_EQ(train_padded(2), train_padded(0));
}

INSTANTIATE_TEST_SUITE_P(Rules, EveryOptimizer, ::testing::ValuesIn(rules()),
                         [](const auto& parameter) { return parameter.param.name(); });

TEST(MuonMatrices, MustBeMatrices) {
  run_ranks(1, [](Communicator& comm) {
    const auto device = make_cpu_device();
    std::vector<ParameterSpec> model = ToyModel::specs();
    model[4].use_muon = true;
    const auto create = [&](const std::string& type) {
      Engine::create(config_of({.rule = {type}}), *device, comm, model, ToyModel::groups());
    };
    create("AdamW");  // which has no use for the mark
    EXPECT_THAT([&] { create("Muon"); },
                ::testing::ThrowsMessage<ConfigError>(
                    HasSubstr("h.1.weight: use_muon is for matrices, this has 1 dimensions")));
  });
}

}  // namespace
}  // namespace zerorun::optimizer
