#pragma once

#include "amp/stochastic_rounding.h"
#include "device/block8.h"
#include "device/update_rules.h"
#include "tests/comm/reference.h"
#include "tests/device/conformance.h"

namespace zerorun::testing {

inline UpdateScalars scalars_of(UpdateRule rule, bool variant) {
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
          .step = 3};
}

inline constexpr UpdateRule kRules[] = {
    UpdateRule::adam,           UpdateRule::sgd,  UpdateRule::adagrad,       UpdateRule::lion,
    UpdateRule::lamb_direction, UpdateRule::lamb, UpdateRule::muon_direction};

inline int states_of(UpdateRule rule) {
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

// The value at an element as 16 bits hold it.
inline float rounded(float value, DType dtype, const StochasticRounding& rounding,
                     int64_t element) {
  const uint32_t random = dtype == DType::fp32 ? 0 : rounding.bits(element);
  if (dtype == DType::bf16) return to_float(round_to_bf16(value, random));
  if (dtype == DType::fp16) return to_float(round_to_fp16(value, random));
  return value;
}

inline float nearest(float value, DType dtype) {
  if (dtype == DType::bf16) return to_float(to_bf16(value));
  if (dtype == DType::fp16) return to_float(to_fp16(value));
  return value;
}

inline void requantize(std::span<float> values, bool is_signed) {
  const Block8 code{is_signed};
  for (size_t begin = 0; begin < values.size(); begin += kStateBlock) {
    const std::span block =
        values.subspan(begin, std::min<size_t>(kStateBlock, values.size() - begin));
    const float scale = Block8::scale_of(block);
    for (float& value : block) value = code.decode(code.encode(value, scale), scale);
  }
}

inline std::span<float> part_of(std::vector<float>& values, const UpdateSegment& segment) {
  return std::span(values).subspan(static_cast<size_t>(segment.begin),
                                   static_cast<size_t>(segment.numel));
}

inline Values random_values(int64_t numel, const Storage& storage) {
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

// By the scalar formulas; `segments` are of one rule.
inline Values updated(Values v, std::span<const UpdateSegment> segments, const Storage& storage,
                      int states) {
  with_rule(segments.front().scalars.rule, states > 0, [&](auto* type) {
    using Rule = std::remove_pointer_t<decltype(type)>;
    for (const UpdateSegment& segment : segments) {
      const UpdateScalars& s = segment.scalars;
      const Rule rule(s);
      for (int64_t k = 0; k < segment.numel; ++k) {
        const auto i = static_cast<size_t>(segment.begin + k);
        v.param[i] =
            nearest(rule(ScalarMath{}, v.grad[i], v.master[i], v.states[0][i], v.states[1][i]),
                    storage.param.value_or(DType::fp32));
        const auto at = [&](uint32_t tensor) {
          return StochasticRounding{
              .step = s.step, .parameter = segment.parameter, .tensor = tensor};
        };
        const int64_t element = segment.element + k;
        if (Rule::kSteps) v.master[i] = rounded(v.master[i], storage.master, at(0), element);
        for (uint32_t j = 0; j < 2 && storage.state != DType::uint8; ++j) {
          v.states[j][i] = rounded(v.states[j][i], storage.state, at(j + 1), element);
        }
      }
    }
  });
  if (storage.state == DType::uint8) {
    for (const UpdateSegment& segment : segments) {
      for (size_t k = 0; k < 2; ++k) requantize(part_of(v.states[k], segment), k == 0);
    }
  }
  return v;
}

// A vector of values on the device in some dtype.
class Stored {
 public:
  Stored(Device& device, Stream& user, const std::vector<float>& values, DType dtype,
         bool is_signed, int64_t offset)
      : dtype_(dtype),
        numel_(std::ssize(values)),
        code_{is_signed},
        scales_(device, user, scales_of(values), offset),
        bytes_(device, user, encoded(values), offset * static_cast<int64_t>(size_of(dtype))) {}

  operator TensorView() const& {  // NOLINT: reads as a tensor in calls
    return {bytes_.view().data, numel_, dtype_};
  }
  TensorView scales() const { return dtype_ == DType::uint8 ? scales_.view() : TensorView{}; }

  std::vector<float> values() const {
    const std::vector<uint8_t> bytes = bytes_.host();
    const std::vector<float> scales = scales_.host();
    std::vector<float> result;
    for (int64_t i = 0; i < numel_; ++i) {
      const auto at = static_cast<size_t>(i);
      result.push_back(dtype_ == DType::uint8
                           ? code_.decode(bytes[at], scales[at / kStateBlock])
                           : float_at(reinterpret_cast<const std::byte*>(bytes.data()), dtype_, i));
    }
    return result;
  }

 private:
  std::vector<float> scales_of(std::span<const float> values) const {
    std::vector<float> scales;
    while (dtype_ == DType::uint8 && !values.empty()) {
      const size_t count = std::min<size_t>(kStateBlock, values.size());
      scales.push_back(Block8::scale_of(values.first(count)));
      values = values.subspan(count);
    }
    return scales;
  }
  std::vector<uint8_t> encoded(const std::vector<float>& values) const {
    const std::vector<float> scales = scales_of(values);
    std::vector<uint8_t> bytes(values.size() * size_of(dtype_));
    for (size_t i = 0; i < values.size(); ++i) {
      if (dtype_ == DType::uint8) {
        bytes[i] = code_.encode(values[i], scales[i / kStateBlock]);
      } else {
        set_float(reinterpret_cast<std::byte*>(bytes.data()), dtype_, static_cast<int64_t>(i),
                  values[i]);
      }
    }
    return bytes;
  }

  const DType dtype_;
  const int64_t numel_;
  const Block8 code_;
  const DeviceArray<float> scales_;
  const DeviceArray<uint8_t> bytes_;
};

}  // namespace zerorun::testing
