#include "zerorun/dtype.h"

#include <array>
#include <string>
#include <utility>

#include "core/check.h"

namespace zerorun {

std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::fp32:
      return "fp32";
    case DType::bf16:
      return "bf16";
    case DType::fp16:
      return "fp16";
    case DType::int64:
      return "int64";
    case DType::uint8:
      return "uint8";
  }
  return "?";
}

DType parse_dtype(std::string_view name) {
  static constexpr std::array<std::pair<std::string_view, DType>, 11> kNames = {{
      {"fp32", DType::fp32},
      {"float32", DType::fp32},
      {"float", DType::fp32},
      {"bf16", DType::bf16},
      {"bfloat16", DType::bf16},
      {"fp16", DType::fp16},
      {"float16", DType::fp16},
      {"half", DType::fp16},
      {"int64", DType::int64},
      {"long", DType::int64},
      {"uint8", DType::uint8},
  }};
  std::string_view plain = name;
  if (plain.starts_with("torch.")) plain.remove_prefix(6);
  for (const auto& [spelling, dtype] : kNames) {
    if (plain == spelling) return dtype;
  }
  fail<ConfigError>("unknown dtype '{}': expected fp32, bf16 or fp16", name);
}

float to_float(Fp16 value) {
  const uint32_t sign = (value.bits & 0x8000U) << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1fU;
  const uint32_t mantissa = value.bits & 0x3ffU;
  if (exponent == 0x1fU) return std::bit_cast<float>(sign | 0x7f800000U | (mantissa << 13));
  if (exponent != 0) {
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  }
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;  // subnormal
  return sign != 0 ? -magnitude : magnitude;
}

Fp16 to_fp16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000U);
  const uint32_t magnitude = bits & 0x7fffffffU;
  const auto with_sign = [sign](uint32_t rest) { return Fp16{static_cast<uint16_t>(sign | rest)}; };
  if (magnitude > 0x7f800000U) return with_sign(0x7e00U);   // NaN
  if (magnitude >= 0x477ff000U) return with_sign(0x7c00U);  // rounds to 2^16 or above: infinity
  if (magnitude >= 0x38800000U) {                           // normal
    const uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13) & 1U);
    return with_sign((rounded - 0x38000000U) >> 13);
  }
  // Subnormal: adding 0.5 puts the mantissa of fp16 at the low end of the fp32 mantissa, rounded.
  const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
  return with_sign(std::bit_cast<uint32_t>(shifted) - 0x3f000000U);
}

}  // namespace zerorun
