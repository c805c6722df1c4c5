

#include "tests/common.h"
#include "tests/zero/toy_run.h"
#include "zerorun/engine.h"

namespace zerorun::trajectory {
namespace {

using testing::run_engines;
using testing::ToyModel;

struct Setting {
  int world_size = 2;
  int stage = 0;
  DType dtype = DType::fp32;
  int64_t accumulation = 1;
  int64_t bucket_size = 1 << 20;
  bool overlap = false;
  bool share_parameters = true;
  double clip = 1.0;
  int64_t persistence = 100;
  int64_t reuse_distance = 0;
  int64_t live = 1 << 30;
  bool expert_on_rank_zero_only = false;
};

Config config_of(const Setting& setting) {
  Config config;
  config.batch.accumulation_steps = setting.accumulation;
  config.precision.param_dtype = setting.dtype;
  config.zero.stage = setting.stage;
  config.zero.reduce_bucket_size = setting.bucket_size;
  config.zero.overlap_comm = setting.overlap;
  config.zero.param_persistence_threshold = setting.persistence;
  config.zero.max_reuse_distance = setting.reuse_distance;
  config.zero.max_live_parameters = setting.live;
  config.share_parameters = setting.share_parameters;
  config.gradient_clipping = setting.clip;
  return config;
}

struct Outcome {
  uint64_t hash = 0;
  double last_norm = 0;
  std::vector<std::vector<float>> parameters;
};

constexpr int kSteps = 5;

Outcome train(const Setting& setting) {
  Outcome outcome;
  std::mutex mutex;
  const testing::ToyJob job{config_of(setting), setting.world_size, {}, ToyModel::specs()};
  run_engines(job, [&](Engine& engine, Communicator& comm) {
    const auto uses = [&](const std::string& module, int rank) {
      return !setting.expert_on_rank_zero_only || module != "expert" || rank == 0;
    };
    StepResult result;
    for (int64_t step = 0; step < kSteps; ++step) {
      for (int64_t micro = 0; micro < setting.accumulation; ++micro) {
        const bool due = ToyModel::micro_step(engine, comm.rank(), micro, step, uses);
        EXPECT_EQ(due, micro + 1 == setting.accumulation);
      }
      result = engine.step();
      EXPECT_TRUE(result.applied);
    }
    const uint64_t hash = engine.states().parameter_hash();
    std::vector<std::vector<float>> parameters;
    for (ParameterId id = 0; id < static_cast<ParameterId>(engine.parameters().size()); ++id) {
      const ModuleId module = engine.module_id(engine.parameters()[static_cast<size_t>(id)].module);
      engine.gather(module);
      std::vector<float>& values = parameters.emplace_back();
      for (int64_t i = 0; i < engine.numel(id); ++i) {
        values.push_back(ToyModel::load(engine.parameter(id), i));
      }
      engine.release(module);
    }
    const std::lock_guard lock(mutex);
    if (comm.rank() == 0) outcome = {hash, result.grad_norm, parameters};
  });
  return outcome;
}

struct Moments {
  std::vector<double> m;
  std::vector<double> v;
};

void adamw(const ParameterGroup& group, int64_t step, double clip, const std::vector<double>& grad,
           Moments& moments, std::vector<double>& value) {
  moments.m.resize(value.size());
  moments.v.resize(value.size());
  const double correction1 = 1 - std::pow(0.9, static_cast<double>(step + 1));
  const double correction2 = 1 - std::pow(0.999, static_cast<double>(step + 1));
  for (size_t i = 0; i < value.size(); ++i) {
    const double g = grad[i] * clip;
    double& m = moments.m[i];
    double& v = moments.v[i];
    value[i] -= static_cast<double>(group.lr) * group.weight_decay * value[i];
    m = 0.9 * m + 0.1 * g;
    v = 0.999 * v + 0.001 * g * g;
    value[i] -= group.lr / correction1 * m / (std::sqrt(v / correction2) + 1e-8);
  }
}

// Single process, double precision, textbook AdamW.
Outcome reference(const Setting& setting) {
  const std::vector<ParameterSpec> specs = ToyModel::specs();
  const std::vector<ParameterGroup> groups = ToyModel::groups();
  std::vector<std::vector<double>> value(specs.size());
  for (size_t p = 0; p < specs.size(); ++p) {
    int64_t numel = 1;
    for (int64_t size : specs[p].shape) numel *= size;
    for (int64_t i = 0; i < numel; ++i) {
      value[p].push_back(ToyModel::initial(static_cast<ParameterId>(p), i));
    }
  }
  constexpr size_t kEmbed = 0;
  constexpr size_t kHead = 8;  // tied to it
  std::vector<Moments> states(specs.size());
  Outcome outcome;
  for (int64_t step = 0; step < kSteps; ++step) {
    std::vector<std::vector<double>> grad(specs.size());
    double squares = 0;
    for (size_t p = 0; p < specs.size(); ++p) {
      grad[p].assign(value[p].size(), 0.0);
      if (!specs[p].trainable || !specs[p].alias_of.empty()) continue;
      for (size_t i = 0; i < value[p].size(); ++i) {
        const auto x = static_cast<float>(value[p][i]);
        for (int rank = 0; rank < setting.world_size; ++rank) {
          if (setting.expert_on_rank_zero_only && specs[p].module == "expert" && rank != 0)
            continue;
          for (int64_t micro = 0; micro < setting.accumulation; ++micro) {
            const auto element = static_cast<int64_t>(i);
            grad[p][i] += ToyModel::gradient(x, static_cast<int>(p), element, rank, micro, step);
            if (p == kEmbed) {
              grad[p][i] += ToyModel::gradient(x, kHead, element, rank, micro, step);
            }
          }
        }
        grad[p][i] /= static_cast<double>(setting.world_size * setting.accumulation);
        squares += grad[p][i] * grad[p][i];
      }
    }
    outcome.last_norm = std::sqrt(squares);
    const double clip =
        setting.clip > 0 ? std::min(1.0, setting.clip / (outcome.last_norm + 1e-6)) : 1.0;
    for (size_t p = 0; p < specs.size(); ++p) {
      if (!specs[p].trainable || !specs[p].alias_of.empty()) continue;
      adamw(groups[static_cast<size_t>(specs[p].group)], step, clip, grad[p], states[p], value[p]);
    }
  }
  for (std::vector<double>& values : value) {
    outcome.parameters.emplace_back(values.begin(), values.end());
  }
  outcome.parameters[kHead] = outcome.parameters[kEmbed];
  return outcome;
}

void expect_near(const Outcome& outcome, const Outcome& expected, float tolerance) {
  EXPECT_NEAR(outcome.last_norm / expected.last_norm, 1.0, tolerance);
  ASSERT_EQ(outcome.parameters.size(), expected.parameters.size());
  for (size_t p = 0; p < expected.parameters.size(); ++p) {
    ASSERT_EQ(outcome.parameters[p].size(), expected.parameters[p].size());
    for (size_t i = 0; i < expected.parameters[p].size(); ++i) {
      ASSERT_NEAR(outcome.parameters[p][i], expected.parameters[p][i], tolerance)
          << "parameter " << p << " element " << i;
    }
  }
}

TEST(Trajectory, MatchesAScalarReferenceAtEveryStageAndWorldSize) {
  for (int world_size : {1, 2, 3}) {
    for (int64_t accumulation : {1, 3}) {
      const Setting base{.world_size = world_size, .accumulation = accumulation};
      const Outcome expected = reference(base);
      for (int stage = 0; stage <= 3; ++stage) {
        Setting setting = base;
        setting.stage = stage;
        SCOPED_TRACE(::testing::Message() << "world " << world_size << " stage " << stage
                                          << " accumulation " << accumulation);
        expect_near(train(setting), expected, 2e-6F);
      }
    }
  }
}

// One world size and dtype: everything else must give the same bits.
TEST(Trajectory, IsBitEqualAcrossStagesBucketsOverlapAndSharing) {
  for (DType dtype : {DType::fp32, DType::bf16}) {
    for (int64_t accumulation : {1, 2}) {
      const Setting base{.dtype = dtype, .accumulation = accumulation};
      const uint64_t expected = train(base).hash;
      for (int stage = 0; stage <= 3; ++stage) {
        for (int64_t bucket_size : {1, 1000, 1 << 20}) {
          for (bool overlap : {false, true}) {
            for (bool share : {false, true}) {
              if (stage < 3 && !share) continue;
              Setting setting = base;
              setting.stage = stage;
              setting.bucket_size = bucket_size;
              setting.overlap = overlap;
              setting.share_parameters = share;
              EXPECT_EQ(train(setting).hash, expected)
                  << name_of(dtype) << " stage " << stage << " bucket " << bucket_size
                  << " overlap " << overlap << " shared " << share << " accumulation "
                  << accumulation;
            }
          }
        }
      }
    }
  }
}

TEST(Trajectory, StageThreeLimitsChangeSpeedNotBits) {
  const Setting base{.stage = 3, .dtype = DType::bf16, .overlap = true, .share_parameters = false};
  const uint64_t expected = train(base).hash;
  for (int64_t persistence : {0, 600, 1 << 20}) {
    for (int64_t reuse : {0, 1 << 30}) {
      for (int64_t live : {1, 4000, 1 << 30}) {
        Setting setting = base;
        setting.persistence = persistence;
        setting.reuse_distance = reuse;
        setting.live = live;
        EXPECT_EQ(train(setting).hash, expected)
            << "persistence " << persistence << " reuse " << reuse << " live " << live;
      }
    }
  }
}

TEST(Trajectory, ModulesSkippedOnSomeRanksCountAsZero) {
  const Setting base{.accumulation = 2, .expert_on_rank_zero_only = true};
  const Outcome expected = reference(base);
  for (int stage = 0; stage <= 3; ++stage) {
    for (bool overlap : {false, true}) {
      for (bool share : {false, true}) {
        Setting setting = base;
        setting.stage = stage;
        setting.overlap = overlap;
        setting.share_parameters = share;
        setting.bucket_size = 500;
        SCOPED_TRACE(::testing::Message() << "stage " << stage << " overlap " << overlap);
        expect_near(train(setting), expected, 2e-6F);
      }
    }
  }
}

TEST(Trajectory, ClippingToAlmostNothingFreezesWhatDoesNotDecay) {
  // Adam divides the scale out of the moments, so eps must dominate: compare the reported factor.
  run_engines({config_of({.stage = 2, .clip = 1e-9})}, [](Engine& engine, Communicator& comm) {
    ToyModel::micro_step(engine, comm.rank(), 0, 0);
    const StepResult result = engine.step();
    EXPECT_NEAR(result.clip_factor * result.grad_norm, 1e-9, 1e-12);
  });
}

TEST(Trajectory, ANonFiniteGradientSkipsTheStepOnEveryRank) {
  for (int stage = 0; stage <= 3; ++stage) {
    const Config config = config_of({.stage = stage, .dtype = DType::bf16});
    run_engines({config}, [&](Engine& engine, Communicator& comm) {
      const uint64_t before = engine.states().parameter_hash();
      const ParameterId bad = engine.parameter_id("h.1.bias");
      engine.gather(engine.module_id("h.1"));
      const GradientView view = engine.gradient(bad);
      for (int64_t i = 0; i < engine.numel(bad); ++i) ToyModel::store(view.view, i, 1.0F);
      if (comm.rank() == 1) ToyModel::store(view.view, 5, INFINITY);
      engine.grad_ready(bad);
      engine.release(engine.module_id("h.1"));
      engine.end_micro_step();
      EXPECT_FALSE(engine.step().applied);
      EXPECT_EQ(engine.states().progress().step_count, 0);
      EXPECT_EQ(engine.states().parameter_hash(), before);
      ToyModel::micro_step(engine, comm.rank(), 0, 0);
      EXPECT_TRUE(engine.step().applied);
      EXPECT_NE(engine.states().parameter_hash(), before);
    });
  }
}

}  // namespace
}  // namespace zerorun::trajectory
