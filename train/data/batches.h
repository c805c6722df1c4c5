#pragma once

#include <cstdint>
#include <vector>

#include "train/data/corpus.h"
#include "train/model/model.h"

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
  int64_t sequences_;
  uint64_t seed_;
  int half_bits_;
};

// How the sequences of a step are divided: among micro-steps, then ranks, then the sequences of a
// micro-batch.
struct BatchShape {
  int64_t micro_batch = 1;
  int64_t accumulation_steps = 1;
  int64_t seq_len = 1;
  int world_size = 1;
  int rank = 0;
  int64_t global_batch() const { return micro_batch * accumulation_steps * world_size; }
};

// Cuts a corpus into sequences of `seq_len` tokens, reserves the last 5 % of them (at least one, if
// there are two) for evaluation, and returns this rank's part of every batch.
class Batches {
 public:
  // Throws ConfigError if the text is shorter than a sequence or there are fewer sequences than
  // ranks. The corpus must outlive this object.
  Batches(const Corpus& corpus, const BatchShape& shape, uint64_t seed);

  // Returns tokens and targets of this rank's part of the batch that begins with `first_sample`;
  // valid until the next call.
  Batch training(int64_t first_sample, int64_t micro_step);
  // Returns sequences [first, first + micro_batch) of the evaluation part; fewer or none at its
  // end.
  Batch evaluation(int64_t first);

  int64_t training_sequences() const { return training_; }
  int64_t evaluation_sequences() const { return evaluation_; }

 private:
  void load(int64_t slot, int64_t sequence);
  Batch batch(int64_t sequences) const;

  const Corpus& corpus_;
  BatchShape shape_;
  int64_t evaluation_;
  int64_t training_;
  DataOrder order_;
  std::vector<int32_t> tokens_;
  std::vector<int32_t> targets_;
};

}  // namespace zerorun::train
