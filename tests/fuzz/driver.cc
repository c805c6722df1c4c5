#include "tests/fuzz/driver.h"

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "tests/fuzz/mutate.h"

// main() of a fuzz target without libFuzzer: runs COUNT mutations of its seeds, or as many as fit
// into a time, from SEED on. Then prints how many there were.
//   fuzz_config [COUNT|SECONDSs [SEED]]

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

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
    const std::string text = mutator.mutate(seeds);
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  }
  std::printf("%ld inputs\n", count);
  return 0;
}
