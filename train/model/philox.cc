#include "train/model/philox.h"

#include <array>
#include <cmath>
#include <numbers>

#include "core/parallel.h"

namespace zerorun::train {

namespace {

constexpr int64_t kLanes = 4;             // random numbers per block
constexpr int64_t kElementGrain = 16384;  // elements of one thread's smallest piece of work

// Four normal variates from four uniform ones (Box and Muller, 1958).
std::array<float, kLanes> normals(const Philox::Block& bits) {
  std::array<float, kLanes> result;
  for (size_t pair = 0; pair < kLanes; pair += 2) {
    const float u = (static_cast<float>(bits[pair]) + 0.5F) * 0x1p-32F;
    const float angle = static_cast<float>(bits[pair + 1]) * (0x1p-31F * std::numbers::pi_v<float>);
    const float radius = std::sqrt(-2.0F * std::log(u));
    result[pair] = radius * std::cos(angle);
    result[pair + 1] = radius * std::sin(angle);
  }
  return result;
}

}  // namespace

Philox::Block random_block(const RandomStream& stream, uint64_t position) {
  return Philox::block(
      {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), stream.index,
       static_cast<uint32_t>(stream.purpose)},
      {static_cast<uint32_t>(stream.seed), static_cast<uint32_t>(stream.seed >> 32)});
}

void random_normal(const RandomStream& stream, int64_t begin, float deviation,
                   std::span<float> out) {
  const int64_t end = begin + std::ssize(out);
  const int64_t first_block = begin / kLanes;
  const int64_t blocks = (end + kLanes - 1) / kLanes - first_block;
  parallel_for(blocks, kElementGrain / kLanes, [&](int64_t from, int64_t to) {
    for (int64_t block = first_block + from; block < first_block + to; ++block) {
      const auto values = normals(random_block(stream, static_cast<uint64_t>(block)));
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        const int64_t element = block * kLanes + lane;
        if (element < begin || element >= end) continue;
        out[static_cast<size_t>(element - begin)] = deviation * values[static_cast<size_t>(lane)];
      }
    }
  });
}

double random_uniform(const RandomStream& stream, uint64_t position) {
  const Philox::Block block = random_block(stream, position);
  const uint64_t bits = (uint64_t{block[0]} << 32 | block[1]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

}  // namespace zerorun::train
