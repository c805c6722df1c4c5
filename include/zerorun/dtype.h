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

// Accepts the spellings of DeepSpeed and PyTorch ("bfloat16", "torch.float32", "half", ...).
// Throws ConfigError naming the accepted spellings.
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

ZR_API float to_float(Fp16 value);
// Round to nearest, ties to even; overflow gives infinity.
ZR_API Fp16 to_fp16(float value);

}  // namespace zerorun
