
#include "tests/common.h"
#include "train/text/generate.h"

namespace zerorun::train {
namespace {

TEST(SampleTextTest, KeepsTextAndReplacesTheRest) {
  EXPECT_EQ(sample_text("def f():\n\treturn 1\n"), "def f():\n\treturn 1\n");
  EXPECT_EQ(sample_text("\u00e9 \u20ac \U0001F600"), "\u00e9 \u20ac \U0001F600");
  EXPECT_EQ(sample_text("a\x1b[31m\r\x7f"), "a\uFFFD[31m\uFFFD\uFFFD");
  EXPECT_EQ(sample_text(std::string_view("\0", 1)), "\uFFFD");
  EXPECT_EQ(sample_text(""), "");
}

TEST(SampleTextTest, ReplacesWhatIsNotUtf8) {
  EXPECT_EQ(sample_text("\x8b"), "\uFFFD");            // no lead byte
  EXPECT_EQ(sample_text("\xe2\x82"), "\uFFFD\uFFFD");  // cut short
  EXPECT_EQ(sample_text("\xc0\xaf"), "\uFFFD\uFFFD");  // longer than needed
  EXPECT_EQ(sample_text("\xe0\x80\xaf"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(sample_text("\xed\xa0\x80"), "\uFFFD\uFFFD\uFFFD");            // a surrogate
  EXPECT_EQ(sample_text("\xf4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");  // beyond U+10FFFF
  EXPECT_EQ(sample_text("\xc2\x9b"), "\uFFFD\uFFFD");  // a control character of two bytes
  EXPECT_EQ(sample_text("\xe2\x28\xa1"), "\uFFFD(\uFFFD");
}

}  // namespace
}  // namespace zerorun::train
