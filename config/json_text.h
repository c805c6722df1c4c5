#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "config/json_tree.h"

namespace zerorun {

// What some editors begin a file with; not a part of the text.
inline constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

// The text as strict JSON of the same length, so that places stay what they are: comments and
// trailing commas become spaces, and Infinity, -Infinity and NaN become strings of their length.
std::string to_strict_json(std::string_view text);

// A cursor over the tokens of strict JSON, reporting the original text's places. It runs in step
// with the library's parser, whose events carry no places. Any text may be walked; what is no token
// ends at the next delimiter. Both texts must outlive the cursor and its tokens.
class JsonCursor {
 public:
  struct Token {
    JsonPosition where;
    std::string_view text;  // of the original; empty at the end
  };

  // `strict` is to_strict_json(original).
  JsonCursor(std::string_view strict, std::string_view original);
  // Skips separators and returns the token behind them.
  Token next();

 private:
  void advance(size_t bytes);
  size_t token_length() const;

  std::string_view strict_;
  std::string_view original_;
  size_t offset_ = 0;
  JsonPosition where_{1, 1};
};

}  // namespace zerorun
