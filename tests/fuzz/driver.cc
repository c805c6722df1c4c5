#include "tests/fuzz/driver.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "tests/fuzz/mutate.h"

// main() of a fuzz target without libFuzzer: runs COUNT mutations of its seeds, or as many as fit
// into a time, from SEED on. Then prints how many there were.
//   fuzz_config [COUNT|SECONDSs [SEED]]

int main(int argc, char** argv) {
  using Clock = std::chrono::steady_clock;
  const std::string_view amount = argc > 1 ? argv[1] : "20000";
  const long number = std::strtol(amount.data(), nullptr, 10);
  const bool is_time = amount.ends_with('s');
  const Clock::time_point end = Clock::now() + std::chrono::seconds(is_time ? number : 0);
  const auto seed = static_cast<uint32_t>(argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 1);
  const std::vector<std::string> seeds = zerorun::testing::fuzz_seeds();
  zerorun::testing::Mutator mutator(seed);
  long count = 0;
  for (; is_time ? Clock::now() < end : count < number; ++count) {
    zerorun::testing::fuzz(mutator.mutate(seeds));
  }
  std::printf("%ld inputs\n", count);
  return 0;
}
