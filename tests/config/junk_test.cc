#include "config/docs/report.h"
#include "tests/common.h"
#include "tests/config/support.h"
#include "tests/fuzz/config_seeds.h"
#include "tests/fuzz/mutate.h"

namespace zerorun {
namespace {

// ConfigError, or a configuration; anything else that is thrown fails the test.
bool is_accepted(std::string_view text) {
  try {
    parse_config(text);
    return true;
  } catch (const ConfigError& error) {
    EXPECT_GT(std::string_view(error.what()).size(), 20U);
    return false;
  }
}

TEST(Junk, DamagedConfigurationsParseOrThrow) {
  constexpr int kCases = 20'000;
  const std::vector<std::string> seeds = testing::config_seeds();
  testing::Mutator mutator(2024);
  int accepted = 0;
  for (int i = 0; i < kCases; ++i) accepted += is_accepted(mutator.mutate(seeds)) ? 1 : 0;
  // Both outcomes must be reached for the test to mean anything.
  EXPECT_GT(accepted, kCases / 100);
  EXPECT_LT(accepted, kCases / 2);
}

TEST(Junk, EveryPrefixAndEveryFlippedBitOfASeed) {
  const std::string seed = testing::config_seeds().front();
  EXPECT_TRUE(is_accepted(seed));
  for (size_t length = 0; length < seed.size(); ++length) {
    EXPECT_FALSE(is_accepted(seed.substr(0, length))) << length;
  }
  for (size_t bit = 0; bit < 8 * seed.size(); ++bit) {
    std::string text = seed;
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1U << (bit % 8)));
    is_accepted(text);
  }
}

TEST(Junk, HugeInputsAreRefusedQuickly) {
  EXPECT_FALSE(is_accepted(std::string(1'000'000, '[')));
  EXPECT_FALSE(is_accepted(std::string(100'000'000, '[')));
  EXPECT_FALSE(is_accepted("{\"a\": \"" + std::string(20'000'000, 'x') + "\"}"));
  EXPECT_FALSE(is_accepted("{\"" + std::string(15'000'000, 'x') + "\": 1}"));
  EXPECT_FALSE(is_accepted(std::string(10'000'000, ' ')));
  EXPECT_FALSE(is_accepted(std::string(1'000'000, '#')));
  std::string comments;
  for (int i = 0; i < 5'000'000; ++i) comments += "/* ";  // none of them ends
  EXPECT_FALSE(is_accepted(comments));
  std::string unknown = "{";
  for (int i = 0; i < 90'000; ++i) unknown += fmt::format("\"key_{}\":0,", i);
  EXPECT_THAT(testing::problems_of(unknown + "}"), HasSubstr("90000 problems"));
}

}  // namespace
}  // namespace zerorun
