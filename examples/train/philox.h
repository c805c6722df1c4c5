#pragma once

#include <array>
#include <cstdint>
#include <span>

// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011). A value depends only on seed and position, so any rank computes any part.
namespace zerorun::train {

using PhiloxBlock = std::array<uint32_t, 4>;
PhiloxBlock philox(const PhiloxBlock& counter, const std::array<uint32_t, 2>& key);

// One sequence of random numbers among many.
struct RandomStream {
  enum class Purpose : uint32_t { parameters, data_order, sampling };
  uint64_t seed = 0;
  Purpose purpose = Purpose::parameters;
  uint32_t index = 0;  // of the parameter, the epoch, ...
};

// Block `position` of the stream.
PhiloxBlock random_block(const RandomStream& stream, uint64_t position);

// Elements [begin, begin + out.size()) of the stream's normal variates: N(0, deviation^2).
void random_normal(const RandomStream& stream, int64_t begin, float deviation,
                   std::span<float> out);

// Uniform in [0, 1).
double random_uniform(const RandomStream& stream, uint64_t position);

}  // namespace zerorun::train
