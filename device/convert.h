#pragma once

#include "zerorun/dtype.h"

namespace zerorun {

// Scalar conversions under one name for all floating storage types.
constexpr float widen(float value) { return value; }
constexpr float widen(Bf16 value) { return to_float(value); }
constexpr float widen(Fp16 value) { return to_float(value); }

constexpr void narrow(float value, float* to) { *to = value; }
constexpr void narrow(float value, Bf16* to) { *to = to_bf16(value); }
constexpr void narrow(float value, Fp16* to) { *to = to_fp16(value); }

[[noreturn]] void fail_not_floating(DType dtype);

// Calls `call` with a null pointer of the dtype's storage type.
template <typename Call>
void with_floating(DType dtype, const Call& call) {
  switch (dtype) {
    case DType::fp32:
      return call(static_cast<float*>(nullptr));
    case DType::bf16:
      return call(static_cast<Bf16*>(nullptr));
    case DType::fp16:
      return call(static_cast<Fp16*>(nullptr));
    case DType::int64:
    case DType::uint8:
      break;
  }
  fail_not_floating(dtype);
}

}  // namespace zerorun
