#include "tools/terminal/byte_size.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "core/check.h"
#include "core/format_bytes.h"

namespace zerorun {

int64_t parse_bytes(const std::string& text, const std::string& option) {
  double number = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number);
  std::string unit(end, last);
  std::transform(unit.begin(), unit.end(), unit.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  constexpr double kKibi = 1024;
  const double factor = unit == "GIB" || unit == "G"   ? kKibi * kKibi * kKibi
                        : unit == "GB"                 ? 1e9
                        : unit == "TIB" || unit == "T" ? kKibi * kKibi * kKibi * kKibi
                        : unit == "TB"                 ? 1e12
                        : unit == "MIB" || unit == "M" ? kKibi * kKibi
                        : unit == "MB"                 ? 1e6
                                                       : 0.0;
  const double nbytes = number * factor;
  if (error == std::errc() && unit.empty()) {
    fail<ConfigError>("{} '{}' has no unit: expected a size such as {}GB or {}GiB", option, text,
                      text, text);
  }
  if (error != std::errc() || !(nbytes > 0) || nbytes > kMaxByteSize) {
    fail<ConfigError>("{} '{}': expected a size such as 80GB, 24GiB or 2TB", option, text);
  }
  return static_cast<int64_t>(nbytes);
}

std::string text_of(int64_t nbytes) {
  return nbytes == 0 ? "-" : format_bytes(static_cast<size_t>(nbytes));
}

}  // namespace zerorun
