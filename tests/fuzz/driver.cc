#include "tests/fuzz/driver.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "tests/fuzz/mutate.h"

// main() of a fuzz target without libFuzzer: runs COUNT mutations of its seeds, from SEED on.
//   fuzz_config [COUNT [SEED]]

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int main(int argc, char** argv) {
  constexpr long kDefaultCount = 20'000;
  const long count = argc > 1 ? std::strtol(argv[1], nullptr, 10) : kDefaultCount;
  const auto seed = static_cast<uint32_t>(argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 1);
  const std::vector<std::string> seeds = zerorun::testing::fuzz_seeds();
  zerorun::testing::Mutator mutator(seed);
  for (long i = 0; i < count; ++i) {
    const std::string text = mutator.mutate(seeds);
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  }
  std::printf("%ld inputs\n", count);
  return 0;
}
