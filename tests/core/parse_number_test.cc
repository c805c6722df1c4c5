#include "core/parse_number.h"

#include "tests/common.h"

namespace zerorun {
namespace {

TEST(ParseNumber, TakesAllOfTheTextOrNothing) {
  EXPECT_EQ(parse_number("12"), 12);
  EXPECT_EQ(parse_number("-12"), -12);
  EXPECT_EQ(parse_number<double>("1.5e3"), 1500.0);
  EXPECT_EQ(parse_number<uint32_t>("4294967295"), 4294967295U);
  for (const char* text : {"", " 1", "1 ", "+1", "1x", "x", "0x1", "99999999999"}) {
    EXPECT_EQ(parse_number(text), std::nullopt) << text;
  }
  EXPECT_EQ(parse_number<uint32_t>("-1"), std::nullopt);
}

TEST(ParseNumber, KeepsToTheBounds) {
  EXPECT_EQ(parse_number("3", 3, 5), 3);
  EXPECT_EQ(parse_number("5", 3, 5), 5);
  EXPECT_EQ(parse_number("2", 3, 5), std::nullopt);
  EXPECT_EQ(parse_number("6", 3, 5), std::nullopt);
  for (const char* text : {"nan", "inf", "-inf"}) {
    EXPECT_EQ(parse_number<double>(text), std::nullopt) << text;
  }
}

TEST(TakeNumber, LeavesWhatFollows) {
  std::string_view text = "80GB";
  EXPECT_EQ(take_number<double>(text), 80.0);
  EXPECT_EQ(text, "GB");
  EXPECT_EQ(take_number<double>(text), std::nullopt);
  EXPECT_EQ(text, "GB");
}

}  // namespace
}  // namespace zerorun
