#pragma once

#include <cstdint>
#include <span>

#include "core/philox.h"

// Counter-based random numbers: a value depends only on seed and position, so any rank computes any
// part.
namespace zerorun::train {

// One sequence of random numbers among many.
struct RandomStream {
  enum class Purpose : uint32_t { parameters, data_order, sampling };
  uint64_t seed = 0;
  Purpose purpose = Purpose::parameters;
  uint32_t index = 0;  // of the parameter, the epoch, ...
};

// Block `position` of the stream.
Philox::Block random_block(const RandomStream& stream, uint64_t position);

// Elements [begin, begin + out.size()) of the stream's normal variates: N(0, deviation^2).
void random_normal(const RandomStream& stream, int64_t begin, float deviation,
                   std::span<float> out);

// Uniform in [0, 1).
double random_uniform(const RandomStream& stream, uint64_t position);

}  // namespace zerorun::train
