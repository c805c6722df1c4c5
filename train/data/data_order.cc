#include "train/data/data_order.h"

#include <bit>

#include "core/check.h"
#include "train/model/philox.h"

namespace zerorun::train {

DataOrder::DataOrder(int64_t sequences, uint64_t seed)
    : sequences_(sequences),
      seed_(seed),
      half_bits_((std::bit_width(static_cast<uint64_t>(sequences - 1)) + 1) / 2) {
  ZR_CHECK(sequences > 0 && sequences <= int64_t{1} << 62, "an order of {} sequences", sequences);
}

int64_t DataOrder::sequence(int64_t position) const {
  return permute(position / sequences_, position % sequences_);
}

// A Feistel network permutes [0, 2^(2 * half_bits_)). Applying it repeatedly until the result is in
// [0, sequences_) permutes that range (cycle walking: Black and Rogaway, "Ciphers with arbitrary
// finite domains", 2002).
int64_t DataOrder::permute(int64_t epoch, int64_t index) const {
  constexpr uint64_t kRounds = 6;
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  const RandomStream stream{seed_, RandomStream::Purpose::data_order, static_cast<uint32_t>(epoch)};
  auto value = static_cast<uint64_t>(index);
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

}  // namespace zerorun::train
