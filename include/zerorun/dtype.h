#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "zerorun/export.h"

namespace zerorun {

enum class DType : uint8_t { fp32, bf16, fp16, int64, uint8 };

// Bytes of one element.
constexpr size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::fp32:
      return 4;
    case DType::bf16:
    case DType::fp16:
      return 2;
    case DType::int64:
      return 8;
    case DType::uint8:
      return 1;
  }
  return 0;
}

// "fp32", "bf16", "fp16", "int64", "uint8".
ZR_API std::string_view name_of(DType dtype);

// Parses the name of a dtype as DeepSpeed or PyTorch spell it ("bfloat16", "torch.float32", "half",
// ...). Throws ConfigError that lists the accepted names.
ZR_API DType parse_dtype(std::string_view name);

// Storage type of bfloat16: the upper half of an IEEE binary32.
struct Bf16 {
  uint16_t bits;
};

// Storage type of IEEE binary16.
struct Fp16 {
  uint16_t bits;
};

constexpr float to_float(Bf16 value) { return std::bit_cast<float>(uint32_t{value.bits} << 16); }

// Round to nearest, ties to even; NaN stays NaN (quiet).
constexpr Bf16 to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) {
    return {static_cast<uint16_t>((bits >> 16) | 0x0040U)};
  }
  return {static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16)};
}

constexpr float to_float(Fp16 value) {
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

// Round to nearest, ties to even; overflow gives infinity, NaN stays NaN (quiet).
constexpr Fp16 to_fp16(float value) {
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
