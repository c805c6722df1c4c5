#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace zerorun {

// Compares two secrets in a time that depends on their lengths only.
inline bool same_secret(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  }
  return difference == 0;
}

}  // namespace zerorun
