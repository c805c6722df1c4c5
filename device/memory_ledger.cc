#include "device/memory_ledger.h"

#include <fmt/format.h>

namespace zerorun {

void MemoryLedger::add(size_t nbytes, MemoryCategory category) {
  Entry& entry = entries_[static_cast<size_t>(category)];
  const auto bytes = static_cast<int64_t>(nbytes);
  const int64_t live = entry.live.fetch_add(bytes) + bytes;
  int64_t peak = entry.peak.load();
  while (peak < live && !entry.peak.compare_exchange_weak(peak, live)) {
  }
}

void MemoryLedger::remove(size_t nbytes, MemoryCategory category) noexcept {
  entries_[static_cast<size_t>(category)].live.fetch_sub(static_cast<int64_t>(nbytes));
}

MemoryUse MemoryLedger::use(MemoryCategory category) const {
  const Entry& entry = entries_[static_cast<size_t>(category)];
  return {entry.live.load(), entry.peak.load()};
}

std::string MemoryLedger::summary() const {
  std::string text;
  for (int i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    if (i > 0) text += ", ";
    text += fmt::format("{} {}", name_of(category),
                        format_bytes(static_cast<size_t>(use(category).live_bytes)));
  }
  return text;
}

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
