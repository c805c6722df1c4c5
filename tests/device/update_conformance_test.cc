#include <cmath>
#include <limits>

#include "tests/device/update_reference.h"
#include "zerorun/error.h"

namespace zerorun::testing {
namespace {

class UpdateConformance : public DeviceConformance {
 protected:
  // Updates on the device in the given cuts and compares every bit with the scalar formulas.
  void check(const UpdateScalars& s, const Storage& storage, int states, int64_t numel,
             const std::vector<int64_t>& cuts) {
    const Values before = random_values(numel, storage);
    const Stored master(*device_, before.master, storage.master, true, 1);
    const Stored grad(*device_, before.grad, storage.grad, true, 5);
    const Stored param(*device_, before.param, storage.param.value_or(DType::fp32), true, 7);
    const Stored state0(*device_, before.states[0], storage.state, true, 2);
    const Stored state1(*device_, before.states[1], storage.state, false, 3);
    const bool in_place = !storage.param;
    int64_t begin = 0;
    for (const int64_t end : cuts) {
      const auto part = [&](TensorView view, int64_t block = 1) {
        if (view.data == nullptr) return view;
        return view.slice(begin / block, (end - begin + block - 1) / block);
      };
      UpdateTensors tensors{.master = part(master.view()),
                            .grad = part(grad.view()),
                            .param = in_place ? part(master.view()) : part(param.view()),
                            .parameter = 9,
                            .element = kElement + begin};
      if (states > 0) tensors.states[0] = part(state0.view());
      if (states > 1) tensors.states[1] = part(state1.view());
      tensors.scales = {part(state0.scales(), kStateBlock), part(state1.scales(), kStateBlock)};
      device_->update(*stream_, s, tensors);
      begin = end;
    }
    stream_->synchronize();
    const Values expected = updated(before, s, storage, states);
    EXPECT_EQ(bits_of(master.values()), bits_of(expected.master));
    EXPECT_EQ(bits_of(grad.values()), bits_of(before.grad));
    if (states > 0) {
      EXPECT_EQ(bits_of(state0.values()), bits_of(expected.states[0]));
    }
    if (states > 1) {
      EXPECT_EQ(bits_of(state1.values()), bits_of(expected.states[1]));
    }
    if (!in_place) {
      EXPECT_EQ(bits_of(param.values()), bits_of(expected.param));
    }
  }

  static bool is_direction(UpdateRule rule) {
    return rule == UpdateRule::lamb_direction || rule == UpdateRule::muon_direction;
  }
  static std::vector<Storage> storages(UpdateRule rule) {
    if (is_direction(rule)) {
      return {{.param = DType::fp32},
              {.grad = DType::bf16, .param = DType::fp32},
              {DType::bf16, DType::bf16, DType::fp32, DType::bf16}};
    }
    std::vector<Storage> all;
    for (const DType grad : {DType::fp32, DType::bf16, DType::fp16}) {
      all.push_back({.grad = grad});
      for (const DType param : {DType::fp32, DType::bf16, DType::fp16}) {
        all.push_back({DType::fp32, grad, param, DType::fp32});
        all.push_back({DType::fp32, grad, param, DType::bf16});
      }
    }
    for (const DType half : {DType::bf16, DType::fp16}) {
      all.push_back({half, half, std::nullopt, DType::fp32});
      all.push_back({half, half, std::nullopt, half});
    }
    if (rule != UpdateRule::adam) return all;
    all.push_back({.state = DType::uint8});
    all.push_back({DType::fp32, DType::bf16, DType::bf16, DType::uint8});
    all.push_back({DType::bf16, DType::bf16, std::nullopt, DType::uint8});
    return all;
  }
};

TEST_P(UpdateConformance, HasTheBitsOfTheScalarFormulaForEveryRuleAndType) {
  for (const UpdateRule rule : kRules) {
    for (const bool variant : {true, false}) {
      for (const Storage& storage : storages(rule)) {
        for (const int64_t numel : {1, 31, 32, 33, 100, 256, 1027}) {
          SCOPED_TRACE(::testing::Message()
                       << "rule " << static_cast<int>(rule) << " variant " << variant << " master "
                       << name_of(storage.master) << " grad " << name_of(storage.grad) << " state "
                       << name_of(storage.state) << " numel " << numel);
          check(scalars_of(rule, variant), storage, states_of(rule), numel, {numel});
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST_P(UpdateConformance, SgdWithoutMomentumHasNoState) {
  check(scalars_of(UpdateRule::sgd, false), {}, 0, 1027, {1027});
  check(scalars_of(UpdateRule::sgd, true), {DType::bf16, DType::bf16}, 0, 1027, {1027});
}

TEST_P(UpdateConformance, DoesNotDependOnCutsOrThreads) {
  constexpr int64_t kNumel = 100'001;
  for_thread_counts([&] {
    for (const Storage& storage : {Storage{DType::fp32, DType::bf16, DType::bf16, DType::fp32},
                                   Storage{DType::bf16, DType::bf16, std::nullopt, DType::bf16},
                                   Storage{DType::fp32, DType::bf16, DType::bf16, DType::uint8}}) {
      const UpdateScalars s = scalars_of(UpdateRule::adam, true);
      check(s, storage, 2, kNumel, {kNumel});
      check(s, storage, 2, kNumel, {256, 1024, 70'144, kNumel});
    }
  });
}

// The formulas of the papers in double, term by term.
TEST_P(UpdateConformance, AdamAgreesWithDoublePrecision) {
  for (const bool decoupled : {true, false}) {
    const UpdateScalars s = scalars_of(UpdateRule::adam, decoupled);
    const Values before = random_values(1000, {});
    const auto master = array(before.master);
    const auto exp_avg = array(before.states[0]);
    const auto exp_avg_sq = array(before.states[1]);
    const auto grad = array(before.grad);
    device_->update(*stream_, s,
                    {.master = master.view(),
                     .grad = grad.view(),
                     .param = master.view(),
                     .states = {exp_avg.view(), exp_avg_sq.view()}});
    stream_->synchronize();
    const std::vector<float> result = master.host();
    for (size_t i = 0; i < result.size(); ++i) {
      const double p = before.master[i];
      const double decay = static_cast<double>(s.weight_decay) * p;
      const double g = static_cast<double>(before.grad[i]) * s.grad_scale + (decoupled ? 0 : decay);
      const double m = s.beta1 * before.states[0][i] + (1 - s.beta1) * g;
      const double v = s.beta2 * before.states[1][i] + (1 - s.beta2) * g * g;
      const double m_hat = m / s.bias_correction1;
      const double v_hat = v / s.bias_correction2;
      const double step = m_hat / (std::sqrt(v_hat) + s.eps) + (decoupled ? decay : 0);
      EXPECT_NEAR(result[i], p - s.lr * step, 4e-7 * std::max(1.0, std::abs(p))) << i;
    }
  }
}

TEST_P(UpdateConformance, NonFiniteGradientsShowInTheResult) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const UpdateRule rule : {UpdateRule::adam, UpdateRule::sgd, UpdateRule::adagrad}) {
    for (const float value : {infinity, std::numeric_limits<float>::quiet_NaN()}) {
      const auto master = array(std::vector<float>(40, 1.0F));
      const auto state0 = array(std::vector<float>(40, 0.0F));
      const auto state1 = array(std::vector<float>(40, 0.0F));
      const auto grad = array(std::vector<float>(40, value));
      const auto param = array(std::vector<Bf16>(40));
      device_->update(*stream_, scalars_of(rule, true),
                      {.master = master.view(),
                       .grad = grad.view(),
                       .param = param.view(),
                       .states = {state0.view(), state1.view()}});
      stream_->synchronize();
      for (const Bf16 result : param.host()) EXPECT_FALSE(std::isfinite(to_float(result)));
    }
  }
}

TEST_P(UpdateConformance, StatesIn8BitsKeepInfinityAndNan) {
  for (const float value :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    const auto master = array(std::vector<float>(300, 1.0F));
    const auto codes = array(std::vector<uint8_t>(300));
    const auto codes_sq = array(std::vector<uint8_t>(300));
    const auto scales = array(std::vector<float>(2));
    const auto scales_sq = array(std::vector<float>(2));
    std::vector<float> gradient(300, 1.0F);
    gradient[17] = value;
    const auto grad = array(gradient);
    device_->update(*stream_, scalars_of(UpdateRule::adam, true),
                    {.master = master.view(),
                     .grad = grad.view(),
                     .param = master.view(),
                     .states = {codes.view(), codes_sq.view()},
                     .scales = {scales.view(), scales_sq.view()}});
    stream_->synchronize();
    EXPECT_FALSE(std::isfinite(scales.host()[0]));
    EXPECT_TRUE(std::isfinite(scales.host()[1]));
    EXPECT_EQ(codes.host()[17], 127);
    EXPECT_EQ(codes_sq.host()[17], 255);
  }
}

TEST_P(UpdateConformance, WrongArgumentsAreErrorsAtTheCall) {
  const auto fp32 = array(std::vector<float>(4));
  const auto short32 = array(std::vector<float>(3));
  const auto bf16 = array(std::vector<Bf16>(4));
  const auto codes = array(std::vector<uint8_t>(4));
  const UpdateTensors good = {.master = fp32.view(),
                              .grad = fp32.view(),
                              .param = fp32.view(),
                              .states = {fp32.view(), fp32.view()}};
  const auto expect_error = [&](const UpdateScalars& scalars, auto change) {
    UpdateTensors tensors = good;
    change(tensors);
    EXPECT_THROW(device_->update(*stream_, scalars, tensors), InternalError);
  };
  expect_error({}, [&](UpdateTensors& t) { t.states[0] = short32.view(); });
  expect_error({}, [&](UpdateTensors& t) { t.states[1] = {}; });
  expect_error({}, [&](UpdateTensors& t) { t.states[1] = codes.view(); });  // without scales
  expect_error({}, [&](UpdateTensors& t) { t.param = {fp32.view().data, 4, DType::bf16}; });
  expect_error({}, [&](UpdateTensors& t) { t.master = bf16.view(); });  // and another parameter
  expect_error({}, [&](UpdateTensors& t) { t.element = 1; });
  expect_error({.rule = UpdateRule::muon_direction}, [](UpdateTensors&) {});  // in place
  expect_error({.rule = UpdateRule::lion}, [&](UpdateTensors& t) {
    t.states[0] = codes.view();
    t.scales[0] = fp32.view().slice(0, 1);
  });
}

INSTANTIATE_TEST_SUITE_P(Devices, UpdateConformance, ::testing::ValuesIn(devices_under_test()),
                         name_of_device);

}  // namespace
}  // namespace zerorun::testing
