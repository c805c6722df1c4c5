#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>

#include "device/host_device.h"

namespace zerorun {

// The format of 8-bit optimizer states. Each kStateBlock elements share an fp32 scale, which is
// their largest magnitude; an element is an 8-bit float relative to the scale. This is the
// block-wise quantization of Dettmers et al. 2022, "8-bit optimizers via block-wise quantization",
// with floats instead of its table: floats are converted by shifts, and their relative error of at
// most 1/16 is that of the larger half of the table.
//
// A signed code has 1 sign bit, 4 exponent bits and 3 mantissa bits; an unsigned code, for values
// that are never negative, has 5 exponent bits and 3 mantissa bits. The largest code is the scale
// itself, code 0 is zero. A signed value that is too small becomes zero. An unsigned one becomes
// the smallest code, because a mean square of zero would make a step infinite. Encoding decoded
// values gives the same codes and scale.
struct Block8 {
  bool is_signed = true;

  // Difference between the shifted bits of a decoded float and its code.
  constexpr uint32_t offset() const { return is_signed ? 1016 - 127 : 1016 - 255; }
  constexpr uint32_t largest() const { return is_signed ? 127 : 255; }
  static constexpr int kShift = 20;
  // Minimum scale. With a smaller one, small codes would decode to subnormal fp32 numbers; such a
  // block becomes zero.
  static constexpr float kMinScale = 0x1p-94F;

  ZR_HOST_DEVICE float decode(uint8_t code, float scale) const {
    const uint32_t magnitude = is_signed ? code & 0x7fU : code;
    const float relative =
        magnitude == 0 ? 0.0F : std::bit_cast<float>((magnitude + offset()) << kShift);
    return (is_signed && (code & 0x80U) != 0 ? -relative : relative) * scale;
  }

  // Returns the scale of a block from its largest magnitude; infinity counts as larger than all
  // numbers, and nan as larger than infinity.
  static float scale_of(std::span<const float> values) {
    uint32_t largest = 0;
    for (const float value : values) {
      largest = std::max(largest, std::bit_cast<uint32_t>(value) & 0x7fffffffU);
    }
    return scale_of_magnitude(largest);
  }
  // Same as above, from the bits of the largest magnitude.
  static constexpr float scale_of_magnitude(uint32_t largest_bits) {
    const float scale = std::bit_cast<float>(largest_bits);
    return scale < kMinScale ? 0.0F : scale;
  }

  ZR_HOST_DEVICE uint8_t encode(float value, float scale) const {
    const auto sign = static_cast<uint8_t>(is_signed && std::signbit(value) ? 0x80U : 0U);
    if (!std::isfinite(scale)) return static_cast<uint8_t>(largest());  // decodes to it
    if (scale == 0.0F || value == 0.0F) return 0;
    const uint32_t bits = std::bit_cast<uint32_t>(std::abs(value) * (1.0F / scale));
    // Rounds to nearest, ties away from zero.
    const uint32_t rounded = (bits + (1U << (kShift - 1))) >> kShift;
    const uint32_t least = is_signed ? 0 : 1;
    const uint32_t code = rounded < offset() + least ? least : rounded - offset();
    return code == 0 ? uint8_t{0} : static_cast<uint8_t>(sign | code);
  }
};

}  // namespace zerorun
