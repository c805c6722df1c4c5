#pragma once

#include <cstdint>
#include <string>

namespace zerorun {

// Sizes beyond this are refused.
inline constexpr double kMaxByteSize = 1e18;

// "80GB" -> 80e9, "24GiB" or "24G" -> 24 * 2^30, in any case. Throws ConfigError naming `option`,
// also without a unit.
int64_t parse_bytes(const std::string& text, const std::string& option);

// "1.5 GiB", and "-" for nothing.
std::string text_of(int64_t nbytes);

}  // namespace zerorun
