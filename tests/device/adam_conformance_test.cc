#include <cmath>
#include <limits>

#include "device/adam_math.h"
#include "tests/device/conformance.h"
#include "zerorun/error.h"

namespace zerorun::testing {
namespace {

AdamScalars scalars_of_step(bool decoupled) {
  return {.lr = 0.01F,
          .beta1 = 0.9,
          .beta2 = 0.98,
          .eps = 1e-7F,
          .weight_decay = 0.1F,
          .decoupled = decoupled,
          .bias_correction1 = 0.271F,
          .bias_correction2 = 0.058808F,
          .grad_scale = 0.37F};
}

// The tensors of one update. `Param` = void: the parameter is the master copy.
template <typename Grad>
struct State {
  std::vector<float> master;
  std::vector<float> exp_avg;
  std::vector<float> exp_avg_sq;
  std::vector<Grad> grad;
};

template <typename Grad>
State<Grad> random_state(int64_t numel) {
  State<Grad> state = {random_normal<float>(numel, 1), random_normal<float>(numel, 2, 0.1F),
                       random_normal<float>(numel, 3, 0.01F), random_normal<Grad>(numel, 4)};
  for (float& value : state.exp_avg_sq) value *= value;
  return state;
}

template <typename Grad>
State<Grad> updated(State<Grad> state, const AdamScalars& scalars) {
  const AdamFactors factors(scalars);
  for (size_t i = 0; i < state.grad.size(); ++i) {
    adam_update(ScalarMath{}, factors, to_fp32(state.grad[i]), state.master[i], state.exp_avg[i],
                state.exp_avg_sq[i]);
  }
  return state;
}

class AdamConformance : public DeviceConformance {
 protected:
  template <typename Grad>
  static void expect_equal(const State<Grad>& expected, const DeviceArray<float>& master,
                           const DeviceArray<float>& exp_avg,
                           const DeviceArray<float>& exp_avg_sq) {
    EXPECT_EQ(bits_of(master.host()), bits_of(expected.master));
    EXPECT_EQ(bits_of(exp_avg.host()), bits_of(expected.exp_avg));
    EXPECT_EQ(bits_of(exp_avg_sq.host()), bits_of(expected.exp_avg_sq));
  }

  template <typename Grad, typename Param>
  void check(int64_t numel, bool decoupled) {
    const AdamScalars scalars = scalars_of_step(decoupled);
    const State<Grad> state = random_state<Grad>(numel);
    const auto master = array(state.master, 1);
    const auto exp_avg = array(state.exp_avg, 2);
    const auto exp_avg_sq = array(state.exp_avg_sq, 3);
    const auto grad = array(state.grad, 5);
    const auto param = array(std::vector<Param>(static_cast<size_t>(numel)), 7);
    device_->adam(*stream_, scalars,
                  {master.view(), exp_avg.view(), exp_avg_sq.view(), grad.view(), param.view()});
    stream_->synchronize();
    const State<Grad> expected = updated(state, scalars);
    expect_equal(expected, master, exp_avg, exp_avg_sq);
    std::vector<uint32_t> expected_param;
    for (const float value : expected.master) {
      expected_param.push_back(bits_of(from_fp32<Param>(value)));
    }
    EXPECT_EQ(bits_of(param.host()), expected_param);
    EXPECT_EQ(bits_of(grad.host()), bits_of(state.grad));
  }

  template <typename Grad>
  void check_in_place(int64_t numel, bool decoupled) {
    const AdamScalars scalars = scalars_of_step(decoupled);
    const State<Grad> state = random_state<Grad>(numel);
    const auto master = array(state.master);
    const auto exp_avg = array(state.exp_avg);
    const auto exp_avg_sq = array(state.exp_avg_sq);
    const auto grad = array(state.grad);
    device_->adam(*stream_, scalars,
                  {master.view(), exp_avg.view(), exp_avg_sq.view(), grad.view(), master.view()});
    stream_->synchronize();
    expect_equal(updated(state, scalars), master, exp_avg, exp_avg_sq);
  }

  template <typename Grad>
  void check_all_of_grad() {
    for (const bool decoupled : {true, false}) {
      for (const int64_t numel : {1, 7, 31, 32, 33, 64, 100, 1027}) {
        check<Grad, float>(numel, decoupled);
        check<Grad, Bf16>(numel, decoupled);
        check<Grad, Fp16>(numel, decoupled);
        check_in_place<Grad>(numel, decoupled);
      }
    }
  }
};

TEST_P(AdamConformance, HasTheBitsOfTheScalarFormulaForEveryTypeAndSize) {
  check_all_of_grad<float>();
  check_all_of_grad<Bf16>();
  check_all_of_grad<Fp16>();
}

TEST_P(AdamConformance, DoesNotDependOnCutsOrThreads) {
  constexpr int64_t kNumel = 150'001;
  const AdamScalars scalars = scalars_of_step(true);
  const State<Bf16> state = random_state<Bf16>(kNumel);
  const State<Bf16> expected = updated(state, scalars);
  for_thread_counts([&] {
    for (const std::vector<int64_t>& cuts :
         {std::vector<int64_t>{kNumel}, std::vector<int64_t>{1, 34, 70'000, kNumel}}) {
      const auto master = array(state.master);
      const auto exp_avg = array(state.exp_avg);
      const auto exp_avg_sq = array(state.exp_avg_sq);
      const auto grad = array(state.grad);
      const auto param = array(std::vector<Bf16>(kNumel));
      int64_t begin = 0;
      for (const int64_t end : cuts) {
        const auto part = [&](TensorView view) { return view.slice(begin, end - begin); };
        device_->adam(device_->inline_stream(), scalars,
                      {part(master.view()), part(exp_avg.view()), part(exp_avg_sq.view()),
                       part(grad.view()), part(param.view())});
        begin = end;
      }
      device_->inline_stream().synchronize();
      expect_equal(expected, master, exp_avg, exp_avg_sq);
    }
  });
}

// The formulas of the papers in double, term by term.
TEST_P(AdamConformance, AgreesWithDoublePrecision) {
  for (const bool decoupled : {true, false}) {
    const AdamScalars s = scalars_of_step(decoupled);
    const State<float> state = random_state<float>(1000);
    const auto master = array(state.master);
    const auto exp_avg = array(state.exp_avg);
    const auto exp_avg_sq = array(state.exp_avg_sq);
    const auto grad = array(state.grad);
    device_->adam(*stream_, s,
                  {master.view(), exp_avg.view(), exp_avg_sq.view(), grad.view(), master.view()});
    stream_->synchronize();
    const std::vector<float> result = master.host();
    for (size_t i = 0; i < result.size(); ++i) {
      const double p = state.master[i];
      const double decay = static_cast<double>(s.weight_decay) * p;
      const double g = static_cast<double>(state.grad[i]) * s.grad_scale + (decoupled ? 0 : decay);
      const double m = s.beta1 * state.exp_avg[i] + (1 - s.beta1) * g;
      const double v = s.beta2 * state.exp_avg_sq[i] + (1 - s.beta2) * g * g;
      const double m_hat = m / s.bias_correction1;
      const double v_hat = v / s.bias_correction2;
      const double step = m_hat / (std::sqrt(v_hat) + s.eps) + (decoupled ? decay : 0);
      EXPECT_NEAR(result[i], p - s.lr * step, 4e-7 * std::max(1.0, std::abs(p))) << i;
    }
  }
}

TEST_P(AdamConformance, NonFiniteGradientsShowInTheResult) {
  const float infinity = std::numeric_limits<float>::infinity();
  const auto master = array(std::vector<float>(40, 1.0F));
  const auto exp_avg = array(std::vector<float>(40, 0.0F));
  const auto exp_avg_sq = array(std::vector<float>(40, 0.0F));
  const auto grad = array(std::vector<float>(40, infinity));
  const auto param = array(std::vector<Bf16>(40));
  device_->adam(*stream_, scalars_of_step(true),
                {master.view(), exp_avg.view(), exp_avg_sq.view(), grad.view(), param.view()});
  stream_->synchronize();
  for (const Bf16 value : param.host()) EXPECT_TRUE(std::isnan(to_float(value)));
}

TEST_P(AdamConformance, WrongArgumentsAreErrorsAtTheCall) {
  const auto fp32 = array(std::vector<float>(4));
  const auto short32 = array(std::vector<float>(3));
  const auto bf16 = array(std::vector<Bf16>(4));
  const AdamTensors good = {fp32.view(), fp32.view(), fp32.view(), fp32.view(), fp32.view()};
  AdamTensors tensors = good;
  tensors.exp_avg = short32.view();
  EXPECT_THROW(device_->adam(*stream_, {}, tensors), InternalError);
  tensors = good;
  tensors.exp_avg_sq = bf16.view();
  EXPECT_THROW(device_->adam(*stream_, {}, tensors), InternalError);
  tensors = good;
  tensors.param = {fp32.view().data, 4, DType::bf16};
  EXPECT_THROW(device_->adam(*stream_, {}, tensors), InternalError);
}

INSTANTIATE_TEST_SUITE_P(Devices, AdamConformance, ::testing::ValuesIn(devices_under_test()),
                         name_of_device);

}  // namespace
}  // namespace zerorun::testing
