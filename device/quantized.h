#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "device/host_device.h"
#include "zerorun/device.h"

namespace zerorun {

// The format in which ZeRO++ communicates floats as integers of 8 or 4 bits, symmetric around zero
// (Wang et al. 2023, arXiv 2306.10209, section 3: "block-based quantization"). kQuantizedBlock
// consecutive elements share an fp32 scale, which is their largest magnitude divided by the largest
// integer, 127 or 7. An element becomes the nearest multiple of the scale, ties to even. So its
// error is at most half the scale, apart from rounding in fp32.
//
// In memory a block consists of its scale and then its integers in two's complement; of two
// integers in a byte the first is in the lower bits. If an element is not finite, the whole block
// decodes to nan, so that a step with such gradients is skipped on all ranks.
template <int kBits>
struct Quantized {
  static_assert(kBits == 8 || kBits == 4);
  static constexpr float kLargest = (1 << (kBits - 1)) - 1;
  static constexpr int64_t kNbytes = quantized_nbytes(kQuantizedBlock, kBits);
  // Minimum of the largest magnitude. With a smaller one, 1 / scale would overflow; such a block
  // becomes zero.
  static constexpr float kMin = 0x1p-118F;

  // Returns the scale from the bits of the largest magnitude; infinity counts as larger than all
  // numbers, and nan as larger than infinity.
  ZR_HOST_DEVICE static float scale_of(uint32_t largest_bits) {
    const float largest = std::bit_cast<float>(largest_bits);
    if (!(largest < INFINITY)) return std::bit_cast<float>(0x7fc00000U);
    return largest < kMin ? 0.0F : largest / kLargest;
  }
  ZR_HOST_DEVICE static uint32_t magnitude_bits(float value) {
    return std::bit_cast<uint32_t>(value) & 0x7fffffffU;
  }
  ZR_HOST_DEVICE static float inverse_of(float scale) { return scale > 0.0F ? 1.0F / scale : 0.0F; }
  ZR_HOST_DEVICE static int encode(float value, float inverse) {
    const float scaled = value * inverse;
    // the code of nan does not matter
    if (!(scaled >= -kLargest)) return -static_cast<int>(kLargest);
    return static_cast<int>(nearbyintf(fminf(scaled, kLargest)));
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
