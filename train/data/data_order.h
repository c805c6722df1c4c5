#pragma once

#include <cstdint>

namespace zerorun::train {

// The order in which sequences are used for training. Every epoch has each sequence once, in an
// order that depends only on seed and epoch, not on the number of ranks or on how a batch is
// divided. Any position can be computed without the previous ones.
class DataOrder {
 public:
  DataOrder(int64_t sequences, uint64_t seed);
  // Returns the index in [0, sequences) of sample number `position` since the start of training.
  int64_t sequence(int64_t position) const;

 private:
  int64_t permute(int64_t epoch, int64_t index) const;

  int64_t sequences_;
  uint64_t seed_;
  int half_bits_;
};

}  // namespace zerorun::train
