#include "config/json_text.h"

#include <algorithm>

namespace zerorun {

namespace {

constexpr std::string_view kSpaces = " \t\r\n";
constexpr std::string_view kSeparators = " \t\r\n,:";
constexpr std::string_view kDelimiters = " \t\r\n,:[]{}\"/#";

// Length of the string literal at the start of `text`, quotes included.
size_t string_length(std::string_view text) {
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      return i + 1;
    }
  }
  return text.size();
}

// Length of the comment at the start of `text`; 0 when there is none, npos when it never ends.
size_t comment_length(std::string_view text) {
  if (text.starts_with("/*")) {
    const size_t end = text.find("*/", 2);
    return end == std::string_view::npos ? end : end + 2;
  }
  if (text.starts_with("//") || text.starts_with("#")) {
    return std::min(text.find('\n'), text.size());
  }
  return 0;
}

size_t word_length(std::string_view text) {
  if (text.starts_with("/*")) return 2;  // a comment that never ends
  return std::max<size_t>(1, std::min(text.find_first_of(kDelimiters), text.size()));
}

size_t digits_length(std::string_view text) {
  return std::min(text.find_first_not_of("0123456789"), text.size());
}

// Length of the number at the start of `text` (RFC 8259, section 6); 0 when there is none.
size_t number_length(std::string_view text) {
  size_t length = text.starts_with('-') ? 1 : 0;
  const std::string_view whole = text.substr(length);
  if (digits_length(whole) == 0) return 0;
  length += whole.starts_with('0') ? 1 : digits_length(whole);
  if (text.substr(length).starts_with('.')) length += 1 + digits_length(text.substr(length + 1));
  const std::string_view rest = text.substr(length);
  if (!rest.starts_with('e') && !rest.starts_with('E')) return length;
  const size_t sign = rest.substr(1).starts_with('+') || rest.substr(1).starts_with('-') ? 1 : 0;
  return length + 1 + sign + digits_length(rest.substr(1 + sign));
}

bool is_non_finite(std::string_view word) {
  return word == "Infinity" || word == "-Infinity" || word == "NaN";
}

}  // namespace

std::string to_strict_json(std::string_view text) {
  constexpr size_t kNone = std::string_view::npos;
  std::string strict(text);
  size_t trailing_comma = kNone;  // a comma after a value with nothing behind it yet
  char previous = '[';            // last character that is neither space nor comment
  for (size_t i = 0; i < text.size();) {
    const std::string_view rest = text.substr(i);
    const size_t comment = comment_length(rest);
    if (comment == kNone) break;  // the parser will stop here too
    if (comment > 0) {
      std::replace_if(
          strict.begin() + static_cast<std::ptrdiff_t>(i),
          strict.begin() + static_cast<std::ptrdiff_t>(i + comment),
          [](char c) { return c != '\n'; }, ' ');
      i += comment;
      continue;
    }
    if (kSpaces.find(rest.front()) != kNone) {
      ++i;
      continue;
    }
    const bool closes = rest.front() == '}' || rest.front() == ']';
    if (closes && trailing_comma != kNone) strict[trailing_comma] = ' ';
    const bool after_value = std::string_view("[{,:").find(previous) == kNone;
    trailing_comma = rest.front() == ',' && after_value ? i : kNone;

    const size_t length = rest.front() == '"' ? string_length(rest) : word_length(rest);
    if (is_non_finite(rest.substr(0, length))) {
      strict.replace(i, length, length, ' ');
      strict[i] = '"';
      strict[i + length - 1] = '"';
    }
    i += length;
    previous = text[i - 1];
  }
  return strict;
}

JsonCursor::JsonCursor(std::string_view strict, std::string_view original)
    : strict_(strict), original_(original) {
  if (strict_.starts_with(kByteOrderMark)) offset_ = kByteOrderMark.size();
}

JsonCursor::Token JsonCursor::next() {
  advance(std::min(strict_.find_first_not_of(kSeparators, offset_), strict_.size()) - offset_);
  const size_t length = token_length();
  const Token token{where_, original_.substr(offset_, length)};
  advance(length);
  return token;
}

size_t JsonCursor::token_length() const {
  const std::string_view rest = strict_.substr(offset_);
  if (rest.empty()) return 0;
  if (rest.front() == '"') return string_length(rest);
  for (const std::string_view literal : {"true", "false", "null"}) {
    if (rest.starts_with(literal)) return literal.size();
  }
  const size_t number = number_length(rest);
  return number > 0 ? number : word_length(rest);
}

void JsonCursor::advance(size_t bytes) {
  for (const char c : original_.substr(offset_, bytes)) {
    if (c == '\n') {
      ++where_.line;
      where_.column = 1;
    } else if ((static_cast<unsigned char>(c) & 0xc0U) != 0x80U) {  // not inside a character
      ++where_.column;
    }
  }
  offset_ += bytes;
}

}  // namespace zerorun
