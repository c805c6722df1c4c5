#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "device/convert.h"
#include "device/host_device.h"
#include "zerorun/device.h"

namespace zerorun {

// Floats as integers of 8 or 4 bits, as ZeRO++ sends them (Wang et al. 2023, arXiv 2306.10209,
// section 3: "block-based quantization"). A group of neighbours shares a scale, and an element
// becomes its nearest multiple of it, a tie the even one.
//
// 8 bits: groups of 256, a scale in fp32, the largest magnitude over 127. An element is off by half
// a scale at most, but for the rounding of fp32. 4 bits: groups of 32, a scale in bf16, the value
// of the largest magnitude over -8. So that value takes the integer that has no opposite, and all
// sixteen are in use; a value near its opposite is off by up to a scale, others by half a one.
//
// In memory a block of kQuantizedBlock is its scales and then its integers in two's complement; of
// two in a byte the first has the lower bits. A group in which something is not finite becomes nan
// as a whole: a step with such gradients is skipped, wherever the group has gone.
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
  // With a smaller largest magnitude, one over the scale is not a float; such a group becomes zero.
  static constexpr float kMin = 0x1p-118F;

  // Orders values by their magnitude; of two equal ones the negative is larger.
  ZR_HOST_DEVICE static uint32_t key_of(float value) {
    return std::rotl(std::bit_cast<uint32_t>(value), 1);
  }
  // The scale of a group whose largest key this is. Infinity is larger than all numbers, and nan
  // than it.
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
    if (!(scaled >= kLeast)) return static_cast<int>(kLeast);  // a nan's code says nothing
    return static_cast<int>(nearbyintf(fminf(scaled, kMost)));
  }
  ZR_HOST_DEVICE static float decode(int code, float scale) {
    return static_cast<float>(code) * scale;
  }
};

// The block that a block of the source becomes: matrices of runs are transposed.
ZR_HOST_DEVICE inline int64_t quantized_place(int64_t block, int64_t blocks, int64_t rows,
                                              int64_t columns) {
  const int64_t run = blocks / (rows * columns);  // blocks of one
  const int64_t row = block / run / columns;
  const int64_t column = block / run % columns;
  return (column * rows + row) * run + block % run;
}

// The loss that is kept after this block.
ZR_HOST_DEVICE inline float next_loss(float lost, float now, float beta) {
  return beta * lost + (1.0F - beta) * now;
}

}  // namespace zerorun
