#include "config/json/base64.h"

#include <cstdint>

namespace zerorun {

std::optional<std::string> decode_base64url(std::string_view text) {
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  const size_t digits = text.find_last_not_of('=') + 1;  // 0 when there are none
  const bool is_padded = digits != text.size();
  if (digits % 4 == 1 || text.size() - digits > 2 || (is_padded && text.size() % 4 != 0)) {
    return std::nullopt;
  }
  std::string out;
  out.reserve(digits * 3 / 4);
  uint32_t bits = 0;
  for (size_t i = 0; i < digits; ++i) {
    const size_t value = kAlphabet.find(text[i]);
    if (value == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(value);
    if (i % 4 == 3) {
      out += {static_cast<char>(bits >> 16), static_cast<char>(bits >> 8), static_cast<char>(bits)};
    }
  }
  if (digits % 4 >= 2) out += static_cast<char>(bits >> (digits % 4 == 2 ? 4 : 10));
  if (digits % 4 == 3) out += static_cast<char>(bits >> 2);
  return out;
}

}  // namespace zerorun
