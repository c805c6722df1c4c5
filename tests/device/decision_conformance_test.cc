// What a device decides about a step, against the host's decision and its norm.
#include <cmath>
#include <limits>

#include "amp/step_decision.h"
#include "tests/device/conformance.h"
#include "zerorun/exact_sum.h"

namespace zerorun::testing {
namespace {

struct Votes {
  int64_t any = 2;
  int64_t late = 0;
  // Of three ranks.
  int64_t sum = 21;
  int64_t squares = 147;
};

class DecisionConformance : public DeviceConformance {
 protected:
  void decide(const std::vector<float>& gradient, const StepRule& rule, TensorView decision,
              const Votes& votes = {}) {
    const auto src = array(gradient);
    const auto words = array(std::vector<int64_t>(ExactSum::kWords));
    const auto common = array(std::vector<int64_t>{votes.any, votes.late});
    const auto same = array(std::vector<int64_t>{votes.sum, votes.squares});
    device_->sum_of_squares(*stream_, src.view(),
                            std::vector<SquaresSegment>{{.numel = src.view().numel}}, words.view());
    device_->decide(
        *stream_, {.words = words.view(), .votes = common.view(), .same = same.view(), .ranks = 3},
        rule, decision);
    stream_->synchronize();
  }
  std::vector<float> decided(const std::vector<float>& gradient, const StepRule& rule,
                             const Votes& votes = {}) {
    const auto decision = array(std::vector<float>{3.0F, 3.0F});
    decide(gradient, rule, decision.view(), votes);
    return decision.host();
  }

  // The decision of the host, about the same gradient.
  static std::vector<float> expected(const std::vector<float>& gradient, const Config& config,
                                     double average) {
    ExactSum sum;
    for (size_t i = 0; i < gradient.size(); i += kNormBlock) {  // one is finite, or is not
      double squares = 0.0;
      for (size_t k = i; k < i + kNormBlock; ++k) squares += double{gradient[k]} * gradient[k];
      sum.add(squares);
    }
    const StepDecision decision =
        StepDecider(config, average).decide(std::sqrt(sum.value()), sum.non_finite_terms() == 0);
    if (!decision.result.applied) return {0.0F, 0.0F};
    return {decision.grad_scale, 1.0F};
  }

  static constexpr float kInf = std::numeric_limits<float>::infinity();
};

TEST_P(DecisionConformance, HasTheBitsOfTheHosts) {
  for (const double average : {1.0, 0.125, 1.0 / 3.0, 1.0 / (3 * 65536.0)}) {
    for (const double clipping : {0.0, 1e-3, 0.7, 1e9}) {
      for (const DType dtype : {DType::fp32, DType::bf16}) {
        Config config;
        config.gradient_clipping = clipping;
        config.precision.param_dtype = dtype;
        config.precision.check_grad_overflow = false;
        const StepRule rule = StepDecider(config, average).rule();
        for (int i = 0; i < 12; ++i) {
          // Norms over 20 powers of ten; zeros.
          std::vector<float> gradient(512);
          for (size_t k = 0; k < gradient.size() && i > 0; ++k) {
            gradient[k] = std::pow(10.0F, static_cast<float>(2 * i - 12)) *
                          std::sin(static_cast<float>(k) + static_cast<float>(i));
          }
          if (i == 11) gradient[300] = kInf;
          EXPECT_EQ(bits_of(decided(gradient, rule)), bits_of(expected(gradient, config, average)))
              << average << " " << clipping << " " << i;
        }
      }
    }
  }
}

TEST_P(DecisionConformance, TakesNoStepThatTheRanksDoNotAgreeOn) {
  const std::vector<float> gradient(256, 0.5F);
  const std::vector<float> none = {0.0F, 0.0F};
  EXPECT_EQ(decided(gradient, {}), (std::vector<float>{1.0F, 1.0F}));
  EXPECT_EQ(decided(gradient, {}, {.any = 0}), none);
  EXPECT_EQ(decided(gradient, {}, {.late = 1}), none);
  EXPECT_EQ(decided(gradient, {}, {.sum = 21, .squares = 149}), none);  // 6, 7 and 8
  EXPECT_EQ(decided({1.0F, kInf}, {}), none);
}

TEST_P(DecisionConformance, IsReadByTheUpdate) {
  const std::vector<float> ones(1000, 1.0F);
  const std::vector<float> nan(4, std::numeric_limits<float>::quiet_NaN());
  for (const bool aligned : {true, false}) {
    for (const bool taken : {true, false}) {
      const auto decision = array(std::vector<float>(2));
      decide(taken ? ones : nan, {.average = 0.25}, decision.view());
      const auto master = array(ones, aligned ? 0 : 1);
      const auto state = array(ones, aligned ? 0 : 3);
      const auto grad = array(ones, aligned ? 0 : 5);
      // grad_scale is not what counts
      UpdateSegment segment{.numel = 1000};
      segment.scalars = {.rule = UpdateRule::sgd, .lr = 0.5F, .beta1 = 0.5, .grad_scale = 77.0F};
      segment.scalars.step = 2;
      device_->update(*stream_,
                      {.master = master.view(),
                       .grad = grad.view(),
                       .param = master.view(),
                       .states = {state.view()},
                       .decision = decision.view()},
                      {&segment, 1});
      stream_->synchronize();
      EXPECT_EQ(state.host(), std::vector<float>(1000, taken ? 0.75F : 1.0F));
      EXPECT_EQ(master.host(), std::vector<float>(1000, taken ? 0.625F : 1.0F));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, DecisionConformance, ::testing::ValuesIn(devices_under_test()),
                         name_of_device);

}  // namespace
}  // namespace zerorun::testing
