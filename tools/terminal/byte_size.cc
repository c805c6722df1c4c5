#include "tools/terminal/byte_size.h"

#include <algorithm>
#include <cctype>

#include "core/check.h"
#include "core/format_bytes.h"
#include "core/parse_number.h"

namespace zerorun {

int64_t parse_bytes(const std::string& text, const std::string& option) {
  std::string_view rest = text;
  const std::optional<double> number = take_number<double>(rest);
  std::string unit(rest);
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
  const double nbytes = number.value_or(0) * factor;
  if (number && unit.empty()) {
    fail<ConfigError>("{} '{}' has no unit: expected a size such as {}GB or {}GiB", option, text,
                      text, text);
  }
  if (!(nbytes > 0) || nbytes > kMaxByteSize) {
    fail<ConfigError>("{} '{}': expected a size such as 80GB, 24GiB or 2TB", option, text);
  }
  return static_cast<int64_t>(nbytes);
}

std::string text_of(int64_t nbytes) {
  return nbytes == 0 ? "-" : format_bytes(static_cast<size_t>(nbytes));
}

}  // namespace zerorun
