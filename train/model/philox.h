#pragma once

#include <cstdint>
#include <span>

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
Philox::Block random_block(const RandomStream& stream, uint64_t position);

// Writes elements [begin, begin + out.size()) of the stream's normal variates, N(0, deviation^2).
void random_normal(const RandomStream& stream, int64_t begin, float deviation,
                   std::span<float> out);

// Returns a number that is uniform in [0, 1).
double random_uniform(const RandomStream& stream, uint64_t position);

}  // namespace zerorun::train
