#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "device/convert.h"
#include "device/host_device.h"
#include "zerorun/device.h"

namespace zerorun {

// The format in which ZeRO++ communicates floats as integers of 8 or 4 bits (Wang et al. 2023,
// arXiv 2306.10209, section 3: "block-based quantization"). A group of consecutive elements shares
// a scale. An element becomes the nearest multiple of the scale, ties to even.
//
// 8 bits: groups of 256, with an fp32 scale, the largest magnitude divided by 127. The error of an
// element is at most half the scale, apart from rounding in fp32. 4 bits: groups of 32, with a bf16
// scale, the value of the largest magnitude divided by -8. So that value takes the integer without
// an opposite, and all sixteen integers are used. A value near its opposite has an error of up to
// one scale, others of at most half a scale.
//
// In memory a block of kQuantizedBlock elements is its scales and then its integers in two's
// complement; of two integers in a byte the first is in the lower bits. If an element is not
// finite, its whole group decodes to nan, so that a step with such gradients is skipped on all
// ranks.
template <int kBits>
struct Quantized {
  static_assert(kBits == 8 || kBits == 4);
  using Scale = std::conditional_t<kBits == 4, Bf16, float>;
  static constexpr int64_t kGroup = kBits == 4 ? 32 : kQuantizedBlock;
  static constexpr int64_t kGroups = kQuantizedBlock / kGroup;
  static constexpr int64_t kCodesBegin = kGroups * static_cast<int64_t>(sizeof(Scale));
  static constexpr int64_t kNbytes = quantized_nbytes(kQuantizedBlock, kBits);
  static_assert(kNbytes == kCodesBegin + kQuantizedBlock * kBits / 8);
  static constexpr float kLeast = kBits == 4 ? -8 : -127;
  static constexpr float kMost = kBits == 4 ? 7 : 127;
  // Minimum of the largest magnitude. With a smaller one, 1 / scale would overflow; such a group
  // becomes zero.
  static constexpr float kMin = 0x1p-118F;

  // Orders values by their magnitude; of two equal ones the negative is larger.
  ZR_HOST_DEVICE static uint32_t key_of(float value) {
    return std::rotl(std::bit_cast<uint32_t>(value), 1);
  }
  // Returns the scale of a group from its largest key; infinity counts as larger than all numbers,
  // and nan as larger than infinity.
  ZR_HOST_DEVICE static Scale scale_of(uint32_t largest_key) {
    const float largest = std::bit_cast<float>(std::rotr(largest_key, 1));
    const float magnitude = fabsf(largest);
    float scale = kBits == 4 ? largest / kLeast : magnitude / kMost;
    if (magnitude < kMin) scale = 0.0F;
    if (!(magnitude < INFINITY)) scale = std::bit_cast<float>(0x7fc00000U);
    Scale stored;
    narrow(scale, &stored);
    return stored;
  }
  ZR_HOST_DEVICE static float inverse_of(float scale) {
    return scale != 0.0F ? 1.0F / scale : 0.0F;
  }
  ZR_HOST_DEVICE static int encode(float value, float inverse) {
    const float scaled = value * inverse;
    if (!(scaled >= kLeast)) return static_cast<int>(kLeast);  // the code of nan does not matter
    return static_cast<int>(nearbyintf(fminf(scaled, kMost)));
  }
  ZR_HOST_DEVICE static float decode(int code, float scale) {
    return static_cast<float>(code) * scale;
  }
};

// Returns the index of the output block of a source block; the matrix of runs is transposed
// (Quantization::rows).
ZR_HOST_DEVICE inline int64_t quantized_place(int64_t block, int64_t blocks, int64_t rows,
                                              int64_t columns) {
  const int64_t run = blocks / (rows * columns);  // blocks per run
  const int64_t row = block / run / columns;
  const int64_t column = block / run % columns;
  return (column * rows + row) * run + block % run;
}

// Returns the quantization error to keep (LoCo), from the earlier error `lost` and the new error
// `now`.
ZR_HOST_DEVICE inline float next_loss(float lost, float now, float beta) {
  return beta * lost + (1.0F - beta) * now;
}

}  // namespace zerorun
