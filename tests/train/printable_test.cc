#include "train/printable.h"

#include <gtest/gtest.h>

namespace zerorun::train {
namespace {

TEST(PrintableTest, KeepsTextAndReplacesTheRest) {
  EXPECT_EQ(printable("def f():\n\treturn 1\n"), "def f():\n\treturn 1\n");
  EXPECT_EQ(printable("\u00e9 \u20ac \U0001F600"), "\u00e9 \u20ac \U0001F600");
  EXPECT_EQ(printable("a\x1b[31m\r\x7f"), "a\uFFFD[31m\uFFFD\uFFFD");
  EXPECT_EQ(printable(std::string_view("\0", 1)), "\uFFFD");
  EXPECT_EQ(printable(""), "");
}

TEST(PrintableTest, ReplacesWhatIsNotUtf8) {
  EXPECT_EQ(printable("\x8b"), "\uFFFD");            // no lead byte
  EXPECT_EQ(printable("\xe2\x82"), "\uFFFD\uFFFD");  // cut short
  EXPECT_EQ(printable("\xc0\xaf"), "\uFFFD\uFFFD");  // longer than needed
  EXPECT_EQ(printable("\xe0\x80\xaf"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(printable("\xed\xa0\x80"), "\uFFFD\uFFFD\uFFFD");            // a surrogate
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");  // beyond U+10FFFF
  EXPECT_EQ(printable("\xc2\x9b"), "\uFFFD\uFFFD");  // a control character of two bytes
  EXPECT_EQ(printable("\xe2\x28\xa1"), "\uFFFD(\uFFFD");
}

}  // namespace
}  // namespace zerorun::train
