#include <cmath>
#include <limits>
#include <optional>

#include "device/block8.h"
#include "device/stochastic_rounding.h"
#include "device/update_rules.h"
#include "tests/device/conformance.h"
#include "zerorun/error.h"

namespace zerorun::testing {
namespace {

constexpr int64_t kElement = 512;  // of the parameter: where updates begin

UpdateScalars scalars_of(UpdateRule rule, bool variant) {
  return {.rule = rule,
          .lr = 0.01F,
          .beta1 = 0.9,
          .beta2 = 0.98,
          .eps = 1e-7F,
          .weight_decay = 0.1F,
          .decoupled = variant,
          .bias_correction1 = 0.271F,
          .bias_correction2 = 0.058808F,
          .grad_scale = 0.37F,
          .dampening = 0.2,
          .nesterov = variant,
          .eps_inside_sqrt = variant,
          .seed = 77,
          .step = 3};
}

constexpr UpdateRule kRules[] = {
    UpdateRule::adam,           UpdateRule::sgd,  UpdateRule::adagrad,       UpdateRule::lion,
    UpdateRule::lamb_direction, UpdateRule::lamb, UpdateRule::muon_direction};

int states_of(UpdateRule rule) {
  switch (rule) {
    case UpdateRule::adam:
    case UpdateRule::lamb_direction:
    case UpdateRule::lamb:
      return 2;
    default:
      return 1;
  }
}

// The tensors of one update in the dtypes that they are stored in, as values.
struct Values {
  std::vector<float> master, grad, param;
  std::vector<float> states[2];
};

struct Storage {
  DType master = DType::fp32;
  DType grad = DType::fp32;
  std::optional<DType> param;  // none: the master
  DType state = DType::fp32;
};

// What 16 bits make of a value at an element.
float rounded(float value, DType dtype, const StochasticRounding& rounding, int64_t element) {
  const uint32_t random = dtype == DType::fp32 ? 0 : rounding.bits(element);
  if (dtype == DType::bf16) return to_float(round_to_bf16(value, random));
  if (dtype == DType::fp16) return to_float(round_to_fp16(value, random));
  return value;
}

float nearest(float value, DType dtype) {
  if (dtype == DType::bf16) return to_float(to_bf16(value));
  if (dtype == DType::fp16) return to_float(to_fp16(value));
  return value;
}

void requantize(std::vector<float>& values, bool is_signed) {
  const Block8 code{is_signed};
  for (size_t begin = 0; begin < values.size(); begin += kStateBlock) {
    const std::span block =
        std::span(values).subspan(begin, std::min<size_t>(kStateBlock, values.size() - begin));
    const float scale = Block8::scale_of(block);
    for (float& value : block) value = code.decode(code.encode(value, scale), scale);
  }
}

Values random_values(int64_t numel, const Storage& storage) {
  Values values{random_normal<float>(numel, 1),
                random_normal<float>(numel, 4),
                std::vector<float>(static_cast<size_t>(numel)),
                {random_normal<float>(numel, 2, 0.1F), random_normal<float>(numel, 3, 0.1F)}};
  for (float& value : values.states[1]) value *= value;
  for (float& value : values.master) value = nearest(value, storage.master);
  for (float& value : values.grad) value = nearest(value, storage.grad);
  for (size_t k = 0; k < 2; ++k) {
    if (storage.state == DType::uint8) requantize(values.states[k], k == 0);
    for (float& value : values.states[k]) value = nearest(value, storage.state);
  }
  return values;
}

// By the scalar formulas.
Values updated(Values v, const UpdateScalars& s, const Storage& storage, int states) {
  with_rule(s, states > 0, [&](const auto& rule) {
    using Rule = std::remove_cvref_t<decltype(rule)>;
    for (size_t i = 0; i < v.master.size(); ++i) {
      const auto element = kElement + static_cast<int64_t>(i);
      v.param[i] = rule(ScalarMath{}, v.grad[i], v.master[i], v.states[0][i], v.states[1][i]);
      const auto at = [&](uint32_t tensor) {
        return StochasticRounding{s.seed, s.step, 9, tensor};
      };
      if (Rule::kSteps) v.master[i] = rounded(v.master[i], storage.master, at(0), element);
      for (uint32_t k = 0; k < 2 && storage.state != DType::uint8; ++k) {
        v.states[k][i] = rounded(v.states[k][i], storage.state, at(k + 1), element);
      }
    }
  });
  if (storage.state == DType::uint8) {
    for (size_t k = 0; k < 2; ++k) requantize(v.states[k], k == 0);
  }
  for (float& value : v.param) value = nearest(value, storage.param.value_or(DType::fp32));
  return v;
}

// A vector of values on the device in some dtype.
class Stored {
 public:
  Stored(Device& device, const std::vector<float>& values, DType dtype, bool is_signed,
         int64_t offset)
      : dtype_(dtype), is_signed_(is_signed) {
    if (dtype == DType::fp32) fp32_.emplace(device, values, offset);
    if (dtype == DType::bf16) bf16_.emplace(device, cast<Bf16>(values), offset);
    if (dtype == DType::fp16) fp16_.emplace(device, cast<Fp16>(values), offset);
    if (dtype == DType::uint8) encode(device, values, offset);
  }

  TensorView view() const {
    if (fp32_) return fp32_->view();
    if (bf16_) return bf16_->view();
    if (fp16_) return fp16_->view();
    return codes_->view();
  }
  TensorView scales() const { return scales_ ? scales_->view() : TensorView{}; }

  std::vector<float> values() const {
    if (fp32_) return fp32_->host();
    std::vector<float> result;
    if (bf16_) {
      for (const Bf16 value : bf16_->host()) result.push_back(to_float(value));
    } else if (fp16_) {
      for (const Fp16 value : fp16_->host()) result.push_back(to_float(value));
    } else {
      const std::vector<float> scales = scales_->host();
      for (const uint8_t code : codes_->host()) {
        result.push_back(Block8{is_signed_}.decode(code, scales[result.size() / kStateBlock]));
      }
    }
    return result;
  }

 private:
  template <typename T>
  static std::vector<T> cast(const std::vector<float>& values) {
    std::vector<T> result;
    for (const float value : values) result.push_back(from_fp32<T>(value));
    return result;
  }
  void encode(Device& device, const std::vector<float>& values, int64_t offset) {
    std::vector<uint8_t> codes;
    std::vector<float> scales;
    for (size_t begin = 0; begin < values.size(); begin += kStateBlock) {
      const std::span block =
          std::span(values).subspan(begin, std::min<size_t>(kStateBlock, values.size() - begin));
      scales.push_back(Block8::scale_of(block));
      for (const float value : block) {
        codes.push_back(Block8{is_signed_}.encode(value, scales.back()));
      }
    }
    codes_.emplace(device, codes, offset);
    scales_.emplace(device, scales, offset);
  }

  const DType dtype_;
  const bool is_signed_;
  std::optional<DeviceArray<float>> fp32_;
  std::optional<DeviceArray<Bf16>> bf16_;
  std::optional<DeviceArray<Fp16>> fp16_;
  std::optional<DeviceArray<uint8_t>> codes_;
  std::optional<DeviceArray<float>> scales_;
};

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
