#include "core/printable.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

namespace zerorun {

namespace {

bool is_tail(char byte) { return (static_cast<uint8_t>(byte) & 0xc0U) == 0x80U; }

// Moves the first character of `text` to the end of `out`, escaped if necessary.
void move_character(std::string_view& text, std::string& out) {
  const size_t size = printable_size(text);
  if (size > 0) {
    out += text.substr(0, size);
  } else {
    out += fmt::format("\\x{:02x}", static_cast<uint8_t>(text.front()));
  }
  text.remove_prefix(std::max<size_t>(size, 1));
}

}  // namespace

// RFC 3629, section 4.
size_t utf8_size(std::string_view text) {
  if (text.empty()) return 0;
  const auto lead = static_cast<uint8_t>(text[0]);
  if (lead < 0x80) return 1;
  const size_t size = lead >= 0xc2 && lead <= 0xdf   ? 2
                      : lead >= 0xe0 && lead <= 0xef ? 3
                      : lead >= 0xf0 && lead <= 0xf4 ? 4
                                                     : 0;
  if (size == 0 || text.size() < size) return 0;
  const auto second = static_cast<uint8_t>(text[1]);
  const uint8_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const uint8_t high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  if (second < low || second > high) return 0;
  return std::all_of(text.begin() + 1, text.begin() + size, is_tail) ? size : 0;
}

size_t printable_size(std::string_view text) {
  const size_t size = utf8_size(text);
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  if (size == 1 && (byte(0) < 0x20 || byte(0) == 0x7f)) return 0;
  if (size == 2 && byte(0) == 0xc2 && byte(1) < 0xa0) return 0;  // control characters of two bytes
  // U+200E, U+200F, U+202A to U+202E and U+2066 to U+2069 change the direction of the text that
  // follows.
  if (size == 3 && byte(0) == 0xe2) {
    const bool mark = byte(1) == 0x80 && (byte(2) == 0x8e || byte(2) == 0x8f);
    const bool embedding = byte(1) == 0x80 && byte(2) >= 0xaa && byte(2) <= 0xae;
    const bool isolate = byte(1) == 0x81 && byte(2) >= 0xa6 && byte(2) <= 0xa9;
    if (mark || embedding || isolate) return 0;
  }
  return size;
}

std::string printable(std::string_view text, size_t max_bytes) {
  const bool is_cut = text.size() > max_bytes;
  if (is_cut) {
    while (max_bytes > 0 && is_tail(text[max_bytes])) --max_bytes;
    text = text.substr(0, max_bytes);
  }
  std::string out;
  while (!text.empty()) move_character(text, out);
  return is_cut ? out + "..." : out;
}

std::string printable_lines(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    if (text.front() == '\n' || text.front() == '\t') {
      out += text.front();
      text.remove_prefix(1);
    } else {
      move_character(text, out);
    }
  }
  return out;
}

}  // namespace zerorun
