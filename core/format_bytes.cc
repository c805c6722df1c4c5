#include "core/format_bytes.h"

#include <fmt/format.h>

#include <string_view>

namespace zerorun {

std::string format_bytes(size_t nbytes) {
  if (nbytes < 1024) return fmt::format("{} B", nbytes);
  auto amount = static_cast<double>(nbytes) / 1024;
  std::string_view unit = "KiB";
  for (const std::string_view larger : {"MiB", "GiB", "TiB", "PiB", "EiB"}) {
    if (amount < 1024) break;
    amount /= 1024;
    unit = larger;
  }
  return fmt::format("{:.1f} {}", amount, unit);
}

}  // namespace zerorun
