#pragma once

#include "zerorun/dtype.h"

namespace zerorun {

// Scalar conversions with the same name for all floating storage types.
constexpr float widen(float value) { return value; }
constexpr float widen(Bf16 value) { return to_float(value); }
constexpr float widen(Fp16 value) {
#ifdef __CUDA_ARCH__  // one instruction, exact; what is not a number keeps the host's bits
  if ((value.bits & 0x7fffU) <= 0x7c00U) {
    float result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
    return result;
  }
#endif
  return to_float(value);
}

constexpr void narrow(float value, float* to) { *to = value; }
constexpr void narrow(float value, Bf16* to) { *to = to_bf16(value); }
constexpr void narrow(float value, Fp16* to) {
#ifdef __CUDA_ARCH__  // likewise, to nearest even
  if (value == value) {
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to->bits) : "f"(value));
    return;
  }
#endif
  *to = to_fp16(value);
}

[[noreturn]] void fail_not_floating(DType dtype);

// Calls `call` with a null pointer to the storage type of `dtype`, to select a template.
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
