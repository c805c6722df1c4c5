#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <span>

#include "core/parallel.h"
#include "core/philox.h"

// Counter-based random numbers: a value depends only on seed and position, so that every rank can
// compute any part.
namespace zerorun::train {

// Identifies one of many sequences of random numbers.
struct RandomStream {
  enum class Purpose : uint32_t { parameters, data_order, sampling };
  uint64_t seed = 0;
  Purpose purpose = Purpose::parameters;
  uint32_t index = 0;  // index of the parameter, the epoch, ...
};

// Returns block number `position` of the stream.
inline Philox::Block random_block(const RandomStream& stream, uint64_t position) {
  return Philox::block(
      {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), stream.index,
       static_cast<uint32_t>(stream.purpose)},
      {static_cast<uint32_t>(stream.seed), static_cast<uint32_t>(stream.seed >> 32)});
}

// Returns a number that is uniform in [0, 1).
inline double random_uniform(const RandomStream& stream, uint64_t position) {
  const Philox::Block block = random_block(stream, position);
  const uint64_t bits = (uint64_t{block[0]} << 32 | block[1]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

// Four normal variates from four uniform ones (Box and Muller, 1958).
inline std::array<float, 4> normal_block(const Philox::Block& bits) {
  std::array<float, 4> result;
  for (size_t pair = 0; pair < 4; pair += 2) {
    const float u = (static_cast<float>(bits[pair]) + 0.5F) * 0x1p-32F;
    const float angle = static_cast<float>(bits[pair + 1]) * (0x1p-31F * std::numbers::pi_v<float>);
    const float radius = std::sqrt(-2.0F * std::log(u));
    result[pair] = radius * std::cos(angle);
    result[pair + 1] = radius * std::sin(angle);
  }
  return result;
}

// Writes elements [begin, begin + out.size()) of the stream's normal variates, N(0, deviation^2).
inline void random_normal(const RandomStream& stream, int64_t begin, float deviation,
                          std::span<float> out) {
  constexpr int64_t kBlocksPerThread = 4096;  // at least
  const int64_t end = begin + std::ssize(out);
  const int64_t first = begin / 4;
  parallel_for((end + 3) / 4 - first, kBlocksPerThread, [&](int64_t from, int64_t to) {
    for (int64_t block = first + from; block < first + to; ++block) {
      const auto values = normal_block(random_block(stream, static_cast<uint64_t>(block)));
      for (int64_t element = std::max(begin, 4 * block); element < std::min(end, 4 * block + 4);
           ++element) {
        out[static_cast<size_t>(element - begin)] =
            deviation * values[static_cast<size_t>(element % 4)];
      }
    }
  });
}

}  // namespace zerorun::train
