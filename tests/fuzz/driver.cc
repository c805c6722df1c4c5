#include "tests/fuzz/driver.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace {

// Damages texts the way that a seed says: bits flipped, bytes replaced, parts cut out, doubled, or
// moved in from another text. The same seed gives the same texts everywhere.
class Mutator {
 public:
  explicit Mutator(uint32_t seed) : random_(seed) {}

  std::string mutate(const std::vector<std::string>& seeds) {
    std::string text = pick(seeds);
    const size_t changes = 1 + below(4);
    for (size_t i = 0; i < changes; ++i) change(text, seeds);
    return text;
  }

 private:
  // std::uniform_int_distribution differs between standard libraries.
  size_t below(size_t limit) { return limit == 0 ? 0 : random_() % limit; }
  const std::string& pick(const std::vector<std::string>& texts) {
    return texts[below(texts.size())];
  }

  void change(std::string& text, const std::vector<std::string>& seeds) {
    static constexpr std::string_view kTokens[] = {
        "{",     "}", "[",   "]",        ",",    ":",       "\"",   "\\",           "/*", "//",
        "1e999", "-", "NaN", "Infinity", "null", "\\u0000", "\xff", "\xef\xbb\xbf", "\n", "#"};
    const size_t at = below(text.size() + 1);
    const size_t length = below(std::min<size_t>(text.size() - at, 40) + 1);
    switch (below(6)) {
      case 0:
        text.resize(at);
        break;
      case 1:
        text.erase(at, length);
        break;
      case 2:
        text.insert(at, text.substr(at, length));
        break;
      case 3:
        text.insert(at, kTokens[below(std::size(kTokens))]);
        break;
      case 4: {
        const std::string& other = pick(seeds);
        text.insert(at, other.substr(below(other.size() + 1), below(60)));
        break;
      }
      default:
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1U << below(8)));
    }
  }

  std::mt19937 random_;
};

}  // namespace

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
  Mutator mutator(seed);
  long count = 0;
  for (; is_time ? Clock::now() < end : count < number; ++count) {
    zerorun::testing::fuzz(mutator.mutate(seeds));
  }
  std::printf("%ld inputs\n", count);
  return 0;
}
