#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace zerorun::testing {

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

}  // namespace zerorun::testing
