// Numbers in texts, texts on terminals, and texts that are secrets.
#include "core/parse_number.h"
#include "core/printable.h"
#include "core/secret.h"
#include "tests/common.h"

namespace zerorun {
namespace {

TEST(ParseNumber, TakesAllOfTheTextWithinTheBoundsOrNothing) {
  EXPECT_EQ(parse_number("12"), 12);
  EXPECT_EQ(parse_number("-12"), -12);
  EXPECT_EQ(parse_number<double>("1.5e3"), 1500.0);
  EXPECT_EQ(parse_number<uint32_t>("4294967295"), 4294967295U);
  for (const char* text : {"", " 1", "1 ", "+1", "1x", "x", "0x1", "99999999999"}) {
    EXPECT_EQ(parse_number(text), std::nullopt) << text;
  }
  EXPECT_EQ(parse_number<uint32_t>("-1"), std::nullopt);
  for (const int value : {2, 3, 5, 6}) {
    EXPECT_EQ(parse_number(std::to_string(value), 3, 5).has_value(), value == 3 || value == 5);
  }
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

TEST(Printable, EscapesWhatATerminalWouldObey) {
  EXPECT_EQ(printable("a\tb\x1b[31m\x7f"), "a\\x09b\\x1b[31m\\x7f");
  EXPECT_EQ(printable("\xc2\x9b"), "\\xc2\\x9b");  // a control character of two bytes
  EXPECT_EQ(printable("\xff\xe2\x82"), "\\xff\\xe2\\x82");
  EXPECT_EQ(printable("\u00e9 \u20ac \U0001F600"), "\u00e9 \u20ac \U0001F600");
  EXPECT_EQ(printable(std::string_view("\0", 1)), "\\x00");
  EXPECT_EQ(printable("a\u202eb"), "a\\xe2\\x80\\xaeb");  // turns the direction of what follows
  EXPECT_EQ(printable("\u2027\u2066"), "\u2027\\xe2\\x81\\xa6");
}

TEST(Printable, CutsBetweenCharacters) {
  EXPECT_EQ(printable("\xc3\xa4\xc3\xb6", 3), "\xc3\xa4...");
  EXPECT_EQ(printable("abc", 3), "abc");
  EXPECT_EQ(printable("abcd", 3), "abc...");
}

TEST(Printable, LinesOfAMessageStay) {
  EXPECT_EQ(printable_lines("1 problem:\n\tkey \x1b[0m\r"), "1 problem:\n\tkey \\x1b[0m\\x0d");
}

TEST(Utf8Size, IsThatOfTheFirstCharacter) {
  EXPECT_EQ(utf8_size("a"), 1U);
  EXPECT_EQ(utf8_size("\n"), 1U);
  EXPECT_EQ(printable_size("\n"), 0U);
  EXPECT_EQ(utf8_size("\u20acx"), 3U);
  EXPECT_EQ(utf8_size("\xed\xa0\x80"), 0U);  // a surrogate
  EXPECT_EQ(utf8_size("\xe0\x80\xaf"), 0U);  // longer than needed
  EXPECT_EQ(utf8_size(""), 0U);
}

TEST(Secret, IsTheSameOnlyIfAllOfItIs) {
  EXPECT_TRUE(same_secret("", ""));
  EXPECT_TRUE(same_secret("secret", "secret"));
  for (const char* other : {"", "s", "secre", "secrets", "Secret", "secreT", "se\xe3ret"}) {
    EXPECT_FALSE(same_secret("secret", other)) << other;
    EXPECT_FALSE(same_secret(other, "secret")) << other;
  }
}

}  // namespace
}  // namespace zerorun
