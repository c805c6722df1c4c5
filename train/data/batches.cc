#include "train/data/batches.h"

#include <algorithm>
#include <bit>

#include "core/check.h"
#include "train/model/philox.h"

namespace zerorun::train {

namespace {

constexpr int64_t kEvaluationPart = 20;  // one of this many sequences is for evaluation

// The target of the last token of a sequence is the first token of the next sequence.
int64_t count_sequences(const Corpus& corpus, const BatchShape& shape) {
  const int64_t count = (corpus.size() - 1) / shape.seq_len;
  if (count < 1) {
    fail<ConfigError>(
        "the data have {} tokens, one sequence of --seq_len {} needs {}: give more data or shorter "
        "sequences",
        corpus.size(), shape.seq_len, shape.seq_len + 1);
  }
  return count;
}

int64_t evaluation_part(int64_t sequences) {
  return sequences < 2 ? 0 : std::max<int64_t>(1, sequences / kEvaluationPart);
}

}  // namespace

DataOrder::DataOrder(int64_t sequences, uint64_t seed)
    : sequences_(sequences),
      seed_(seed),
      half_bits_((std::bit_width(static_cast<uint64_t>(sequences - 1)) + 1) / 2) {
  ZR_CHECK(sequences > 0 && sequences <= int64_t{1} << 62, "an order of {} sequences", sequences);
}

// A Feistel network permutes [0, 2^(2 * half_bits_)). Applying it repeatedly until the result is in
// [0, sequences_) permutes that range (cycle walking: Black and Rogaway, "Ciphers with arbitrary
// finite domains", 2002).
int64_t DataOrder::sequence(int64_t position) const {
  constexpr uint64_t kRounds = 6;
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  const RandomStream stream{seed_, RandomStream::Purpose::data_order,
                            static_cast<uint32_t>(position / sequences_)};
  auto value = static_cast<uint64_t>(position % sequences_);
  do {
    uint64_t left = value >> half_bits_;
    uint64_t right = value & mask;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const uint64_t mixed = random_block(stream, right | round << 48)[0];
      const uint64_t next = left ^ (mixed & mask);
      left = right;
      right = next;
    }
    value = left << half_bits_ | right;
  } while (value >= static_cast<uint64_t>(sequences_));
  return static_cast<int64_t>(value);
}

Batches::Batches(const Corpus& corpus, const BatchShape& shape, uint64_t seed)
    : corpus_(corpus),
      shape_(shape),
      evaluation_(evaluation_part(count_sequences(corpus, shape))),
      training_(count_sequences(corpus, shape) - evaluation_),
      order_(training_, seed),
      tokens_(static_cast<size_t>(shape.micro_batch * shape.seq_len)),
      targets_(tokens_.size()) {
  if (training_ < shape.world_size) {
    fail<ConfigError>(
        "{} ranks but only {} sequences of --seq_len {} to train on (of {} tokens, the last "
        "sequences kept for evaluation): give more data, shorter sequences or fewer ranks",
        shape.world_size, training_, shape.seq_len, corpus.size());
  }
}

Batch Batches::training(int64_t first_sample, int64_t micro_step) {
  const int64_t share = micro_step * shape_.world_size + shape_.rank;
  for (int64_t slot = 0; slot < shape_.micro_batch; ++slot) {
    load(slot, order_.sequence(first_sample + share * shape_.micro_batch + slot));
  }
  return batch(shape_.micro_batch);
}

Batch Batches::evaluation(int64_t first) {
  const int64_t count = std::clamp<int64_t>(evaluation_ - first, 0, shape_.micro_batch);
  for (int64_t slot = 0; slot < count; ++slot) load(slot, training_ + first + slot);
  return batch(count);
}

void Batches::load(int64_t slot, int64_t sequence) {
  const auto length = static_cast<size_t>(shape_.seq_len);
  const auto at = static_cast<size_t>(slot) * length;
  corpus_.read(sequence * shape_.seq_len, std::span(tokens_).subspan(at, length));
  corpus_.read(sequence * shape_.seq_len + 1, std::span(targets_).subspan(at, length));
}

Batch Batches::batch(int64_t sequences) const {
  const auto count = static_cast<size_t>(sequences * shape_.seq_len);
  return {std::span(tokens_).first(count), std::span(targets_).first(count)};
}

}  // namespace zerorun::train
