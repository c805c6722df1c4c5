#include "optim/adam.h"

#include <gmock/gmock.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "zerorun/error.h"

namespace zerorun {
namespace {

using nlohmann::json;

const json& golden() {
  static const json kGolden = [] {
    std::ifstream file(ZERORUN_TEST_DATA "/adam_golden.json");
    return json::parse(file);
  }();
  return kGolden;
}

// One fp32 tensor under an optimizer.
class Trained {
 public:
  Trained(const OptimizerConfig& config, const ParameterGroup& group, std::vector<float> initial)
      : optimizer_(make_optimizer(config)),
        group_(group),
        param_(std::move(initial)),
        exp_avg_(param_.size()),
        exp_avg_sq_(param_.size()) {}

  void step(std::vector<float> grad, float grad_scale = 1.0F) {
    OptimizerSegment segment;
    segment.master = segment.param = view_of(std::span(param_));
    segment.grad = view_of(std::span(grad));
    segment.states = {view_of(std::span(exp_avg_)), view_of(std::span(exp_avg_sq_))};
    ++steps_;
    optimizer_->step(*device_, device_->inline_stream(), steps_, grad_scale, group_, segment);
  }

  const std::vector<float>& param() const { return param_; }
  const std::vector<float>& exp_avg() const { return exp_avg_; }
  const std::vector<float>& exp_avg_sq() const { return exp_avg_sq_; }

 private:
  const std::shared_ptr<Device> device_ = make_cpu_device();
  const std::unique_ptr<Optimizer> optimizer_;
  const ParameterGroup group_;
  int64_t steps_ = 0;
  std::vector<float> param_;
  std::vector<float> exp_avg_;
  std::vector<float> exp_avg_sq_;
};

OptimizerConfig config_of(const json& run) {
  OptimizerConfig config;
  config.type = "Adam";
  config.adam_w_mode = run["decoupled"];
  config.beta1 = run["betas"][0];
  config.beta2 = run["betas"][1];
  config.eps = run["eps"];
  return config;
}

ParameterGroup group_of(const json& run) {
  return {.name = "golden", .lr = run["lr"], .weight_decay = run["weight_decay"]};
}

// Relative to each value, except where terms cancelled: there to the typical size of the tensor.
void expect_near(const std::vector<float>& got, const std::vector<double>& expected,
                 double tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  double squares = 0;
  for (const double value : expected) squares += value * value;
  const double typical = std::sqrt(squares / static_cast<double>(expected.size()));
  for (size_t i = 0; i < got.size(); ++i) {
    const double size = std::max(std::abs(expected[i]), 0.1 * typical);
    EXPECT_NEAR(got[i], expected[i], tolerance * size) << "element " << i;
  }
}

TEST(Adam, MatchesTorch) {
  ASSERT_GE(golden()["adam"].size(), 10U);
  for (const json& run : golden()["adam"]) {
    const json settings = {{"lr", run["lr"]}, {"betas", run["betas"]}, {"eps", run["eps"]}};
    SCOPED_TRACE(settings.dump());
    Trained trained(config_of(run), group_of(run), run["initial"]);
    for (const json& grad : run["gradients"]) trained.step(grad);
    expect_near(trained.param(), run["param"], 1e-6);
    expect_near(trained.exp_avg(), run["exp_avg"], 1e-6);
    expect_near(trained.exp_avg_sq(), run["exp_avg_sq"], 1e-6);
  }
}

// The same runs by the papers' formulas in double.
TEST(Adam, MatchesDoublePrecision) {
  for (const json& run : golden()["adam"]) {
    std::vector<double> p = run["initial"];
    std::vector<double> m(p.size());
    std::vector<double> v(p.size());
    const double beta1 = run["betas"][0];
    const double beta2 = run["betas"][1];
    const double lr = run["lr"];
    const double decay = run["weight_decay"];
    Trained trained(config_of(run), group_of(run), run["initial"]);
    int step = 0;
    for (const json& gradient : run["gradients"]) {
      trained.step(gradient);
      ++step;
      for (size_t i = 0; i < p.size(); ++i) {
        double g = gradient[i];
        if (run["decoupled"]) {
          p[i] -= lr * decay * p[i];
        } else {
          g += decay * p[i];
        }
        m[i] = beta1 * m[i] + (1 - beta1) * g;
        v[i] = beta2 * v[i] + (1 - beta2) * g * g;
        const double v_hat = v[i] / (1 - std::pow(beta2, step));
        const double eps = run["eps"];
        p[i] -= lr * m[i] / (1 - std::pow(beta1, step)) / (std::sqrt(v_hat) + eps);
      }
    }
    expect_near(trained.param(), p, 1e-6);
    expect_near(trained.exp_avg(), m, 1e-6);
    expect_near(trained.exp_avg_sq(), v, 1e-6);
  }
}

TEST(Adam, GradScaleMultipliesTheGradient) {
  Trained scaled({}, {}, {1.0F, -2.0F});
  Trained plain({}, {}, {1.0F, -2.0F});
  for (int i = 0; i < 3; ++i) {
    scaled.step({0.5F, -8.0F}, 0.25F);
    plain.step({0.125F, -2.0F});
  }
  EXPECT_EQ(scaled.param(), plain.param());
  EXPECT_EQ(scaled.exp_avg_sq(), plain.exp_avg_sq());
}

TEST(Adam, WithoutBiasCorrectionTheFirstStepIsSmallerByTheCorrections) {
  OptimizerConfig config;
  config.eps = 0.0F;
  config.bias_correction = false;
  Trained trained(config, {.lr = 0.5F}, {0.0F});
  trained.step({3.0F});
  // m / sqrt(v) = 0.1 g / sqrt(0.001 g^2)
  EXPECT_NEAR(trained.param()[0], -0.5 * 0.1 / std::sqrt(0.001), 1e-6);
}

TEST(Adam, ZeroGradientAndDecayLeaveTheParameter) {
  Trained trained({}, {.lr = 0.1F}, {0.25F, -3.0F});
  trained.step({0.0F, 0.0F});
  EXPECT_EQ(trained.param(), (std::vector<float>{0.25F, -3.0F}));
}

TEST(Adam, NamesItsStatesAsTorch) {
  const auto optimizer = make_optimizer({});
  EXPECT_THAT(optimizer->state_names(), ::testing::ElementsAre("exp_avg", "exp_avg_sq"));
}

TEST(Adam, RejectsAStepBeforeTheFirstAndMissingStates) {
  const auto device = make_cpu_device();
  const auto optimizer = make_optimizer({});
  OptimizerSegment segment;
  segment.states.resize(2);
  EXPECT_THROW(optimizer->step(*device, device->inline_stream(), 0, 1.0F, {}, segment),
               InternalError);
  segment.states.resize(1);
  EXPECT_THROW(optimizer->step(*device, device->inline_stream(), 1, 1.0F, {}, segment),
               InternalError);
}

float first_param(const std::string& type, bool adam_w_mode) {
  OptimizerConfig config;
  config.type = type;
  config.adam_w_mode = adam_w_mode;
  Trained trained(config, {.lr = 0.1F, .weight_decay = 0.5F}, {1.0F});
  trained.step({1.0F});
  return trained.param()[0];
}

// Decoupled decay: 1 - 0.1 * 0.5 - 0.1; L2: Adam's first step is lr * sign(g) whatever the size.
TEST(MakeOptimizer, TypeAndModeMeanWhatTheyMeanInDeepSpeed) {
  for (const std::string type : {"AdamW", "adamw", "ADAMW"}) {
    EXPECT_NEAR(first_param(type, true), 0.85F, 1e-6F);
    EXPECT_NEAR(first_param(type, false), 0.85F, 1e-6F);
  }
  for (const std::string type : {"Adam", "adam"}) {
    EXPECT_NEAR(first_param(type, true), 0.85F, 1e-6F);
    EXPECT_NEAR(first_param(type, false), 0.9F, 1e-6F);
  }
}

TEST(MakeOptimizer, UnknownTypeIsAnErrorNamingTheKnownOnes) {
  OptimizerConfig config;
  config.type = "Lamb";
  try {
    make_optimizer(config);
    FAIL() << "made an optimizer";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), ::testing::AllOf(::testing::HasSubstr("'Lamb'"),
                                               ::testing::HasSubstr("'Adam' or 'AdamW'")));
  }
}

}  // namespace
}  // namespace zerorun
