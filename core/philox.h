#pragma once

#include <array>
#include <cstdint>

namespace zerorun {

// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011).
struct Philox {
  static constexpr uint32_t kMultiplier0 = 0xD2511F53;
  static constexpr uint32_t kMultiplier1 = 0xCD9E8D57;
  static constexpr uint32_t kWeyl0 = 0x9E3779B9;
  static constexpr uint32_t kWeyl1 = 0xBB67AE85;
  static constexpr int kRounds = 10;

  using Block = std::array<uint32_t, 4>;
  using Key = std::array<uint32_t, 2>;

  static constexpr Block block(Block counter, Key key) {
    for (int round = 0; round < kRounds; ++round) {
      const uint64_t product0 = uint64_t{kMultiplier0} * counter[0];
      const uint64_t product1 = uint64_t{kMultiplier1} * counter[2];
      counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
                 static_cast<uint32_t>(product1),
                 static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
                 static_cast<uint32_t>(product0)};
      key[0] += kWeyl0;
      key[1] += kWeyl1;
    }
    return counter;
  }
};

}  // namespace zerorun
