#include "train/printable.h"

#include <algorithm>
#include <cstdint>

namespace zerorun::train {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Bytes of the well-formed character at the start of `bytes`, or 0: RFC 3629, section 4.
size_t character_size(std::string_view bytes) {
  const auto lead = static_cast<uint8_t>(bytes[0]);
  if (lead < 0x80) return lead >= 0x20 && lead != 0x7f ? 1 : lead == '\n' || lead == '\t' ? 1 : 0;
  const size_t size = lead >= 0xc2 && lead <= 0xdf   ? 2
                      : lead >= 0xe0 && lead <= 0xef ? 3
                      : lead >= 0xf0 && lead <= 0xf4 ? 4
                                                     : 0;
  if (size == 0 || bytes.size() < size) return 0;
  const auto second = static_cast<uint8_t>(bytes[1]);
  const uint8_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : lead == 0xc2 ? 0xa0 : 0x80;
  const uint8_t high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  if (second < low || second > high) return 0;
  const auto is_tail = [](char byte) { return (static_cast<uint8_t>(byte) & 0xc0) == 0x80; };
  return std::all_of(bytes.begin() + 1, bytes.begin() + static_cast<int64_t>(size), is_tail) ? size
                                                                                             : 0;
}

}  // namespace

std::string printable(std::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    const size_t size = character_size(bytes);
    text += size > 0 ? bytes.substr(0, size) : kReplacement;
    bytes.remove_prefix(std::max<size_t>(size, 1));
  }
  return text;
}

}  // namespace zerorun::train
