#pragma once

#include <cstdint>

namespace zerorun::train {

// The order in which sequences are trained on: every epoch visits each of them once, in an order
// drawn from seed and epoch. It depends on nothing else, so neither on the number of ranks nor on
// how a batch is split, and any position can be found without what came before.
class DataOrder {
 public:
  DataOrder(int64_t sequences, uint64_t seed);
  // Index in [0, sequences) of sample `position`, counted from the start of training.
  int64_t sequence(int64_t position) const;

 private:
  int64_t permute(int64_t epoch, int64_t index) const;

  int64_t sequences_;
  uint64_t seed_;
  int half_bits_;
};

}  // namespace zerorun::train
