#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "device/host_device.h"
#include "zerorun/device.h"

namespace zerorun {

// Floats as integers of 8 or 4 bits, symmetric around zero, as ZeRO++ sends them (Wang et al. 2023,
// arXiv 2306.10209, section 3: "block-based quantization"). kQuantizedBlock neighbours share an
// fp32 scale, the largest magnitude of them over the largest integer, 127 or 7; an element becomes
// its nearest multiple of the scale, a tie the even one. So it is off by half a scale at most, but
// for the rounding of fp32.
//
// In memory a block is its scale and then its integers in two's complement; of two in a byte the
// first has the lower bits. A block in which something is not finite becomes nan as a whole: a step
// with such gradients is skipped, wherever the block has gone.
template <int kBits>
struct Quantized {
  static_assert(kBits == 8 || kBits == 4);
  static constexpr float kLargest = (1 << (kBits - 1)) - 1;
  static constexpr int64_t kNbytes = quantized_nbytes(kQuantizedBlock, kBits);
  // With a smaller largest magnitude, one over the scale is not a float; such a block becomes zero.
  static constexpr float kMin = 0x1p-118F;

  // The scale for the bits of the largest magnitude. Infinity is larger than all numbers, and nan
  // than it.
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
    if (!(scaled >= -kLargest)) return -static_cast<int>(kLargest);  // a nan's code says nothing
    return static_cast<int>(nearbyintf(fminf(scaled, kLargest)));
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
