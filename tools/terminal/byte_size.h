#pragma once

#include <cstdint>
#include <string>

namespace zerorun {

// Larger sizes are rejected.
inline constexpr double kMaxByteSize = 1e18;

// Parses a size: "80GB" is 80e9, "24GiB" and "24G" are 24 * 2^30; case does not matter. Throws
// ConfigError that names `option`, also if the unit is missing.
int64_t parse_bytes(const std::string& text, const std::string& option);

// Returns "1.5 GiB", or "-" for 0.
std::string text_of(int64_t nbytes);

}  // namespace zerorun
