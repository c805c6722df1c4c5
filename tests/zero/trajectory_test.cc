#include "tests/zero/toy_run.h"

namespace zerorun::testing::trajectory {
namespace {

constexpr int kSteps = 5;

struct Outcome {
  double last_norm = 0;
  std::vector<std::vector<float>> parameters;
};

bool expert_is_rank_zeros(const std::string& module, int rank) {
  return module != "expert" || rank == 0;
}

Outcome train(const Config& config, int ranks = 2,
              const ToyModel::UsesFunction& uses = ToyModel::everything) {
  const ToyJob job{config, ranks, {}, ToyModel::specs()};
  return result_of(job, [&](Engine& engine, Communicator& comm) {
    Outcome own;
    for (int64_t step = 0; step < kSteps; ++step) {
      for (int64_t micro = 0; micro < config.batch.accumulation_steps; ++micro) {
        const bool due = ToyModel::micro_step(engine, comm.rank(), micro, step, uses);
        EXPECT_EQ(due, micro + 1 == config.batch.accumulation_steps);
      }
      own.last_norm = engine.step().grad_norm;
    }
    engine.states().parameter_hash();  // throws when replicas differ
    for (const ParameterId id : parameters_of(engine)) {
      own.parameters.push_back(ToyModel::full_values(engine, id));
    }
    return own;
  });
}

struct Moments {
  std::vector<double> m, v;
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
Outcome reference(int ranks, int64_t accumulation,
                  const ToyModel::UsesFunction& uses = ToyModel::everything) {
  const std::vector<ParameterSpec> specs = ToyModel::specs();
  const std::vector<ParameterGroup> groups = ToyModel::groups();
  std::vector<std::vector<double>> value(specs.size());
  for (size_t p = 0; p < specs.size(); ++p) {
    for (int64_t i = 0; i < specs[p].numel(); ++i) {
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
        for (int rank = 0; rank < ranks; ++rank) {
          if (!uses(specs[p].module, rank)) continue;
          for (int64_t micro = 0; micro < accumulation; ++micro) {
            const auto element = static_cast<int64_t>(i);
            grad[p][i] += ToyModel::gradient(x, static_cast<int>(p), element, rank, micro, step);
            if (p == kEmbed) grad[p][i] += ToyModel::gradient(x, kHead, element, rank, micro, step);
          }
        }
        grad[p][i] /= static_cast<double>(ranks * accumulation);
        squares += grad[p][i] * grad[p][i];
      }
    }
    outcome.last_norm = std::sqrt(squares);
    const double clip = std::min(1.0, 1.0 / (outcome.last_norm + 1e-6));
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

void expect_near(const Outcome& outcome, const Outcome& expected) {
  constexpr float kTolerance = 2e-6F;
  EXPECT_NEAR(outcome.last_norm / expected.last_norm, 1.0, kTolerance);
  for (size_t id = 0; id < expected.parameters.size(); ++id) {
    EXPECT_THAT(outcome.parameters.at(id),
                ::testing::Pointwise(::testing::FloatNear(kTolerance), expected.parameters[id]));
  }
}

TEST(Trajectory, MatchesAScalarReferenceAtEveryStageAndWorldSize) {
  for (const auto& [ranks, accumulation] : each(std::array{1, 2, 3}, std::array{1, 3})) {
    const Outcome expected = reference(ranks, accumulation);
    for (int stage = 0; stage <= 3; ++stage) {
      SCOPED_TRACE(fmt::format("{} ranks, stage {}, {} micro-steps", ranks, stage, accumulation));
      expect_near(train(toy_config(stage, DType::fp32, accumulation), ranks), expected);
    }
  }
}

TEST(Trajectory, ModulesSkippedOnSomeRanksCountAsZero) {
  const Outcome expected = reference(2, 2, expert_is_rank_zeros);
  for (const auto& [stage, overlap, share] : each(kStages, kEither, kEither)) {
    Config config = toy_config(stage, DType::fp32, 2);
    config.zero.overlap_comm = overlap;
    config.share_parameters = share;
    config.zero.reduce_bucket_size = 500;
    SCOPED_TRACE(fmt::format("stage {} overlap {}", stage, overlap));
    expect_near(train(config, 2, expert_is_rank_zeros), expected);
  }
}

}  // namespace
}  // namespace zerorun::testing::trajectory
