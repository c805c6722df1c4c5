#include "device/memory_ledger.h"

#include <fmt/format.h>

#include "core/format_bytes.h"

namespace zerorun {

std::string_view name_of(MemoryCategory category) {
  static constexpr std::array<std::string_view, kMemoryCategories> kNames = {
      "parameters", "gradients", "optimizer", "buckets", "activations",
      "other",      "kept",      "pinned",    "nvme"};
  return kNames.at(static_cast<size_t>(category));
}

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
    if (category == MemoryCategory::kept) continue;
    if (i > 0) text += ", ";
    text += fmt::format("{} {}", name_of(category),
                        format_bytes(static_cast<size_t>(use(category).live_bytes)));
  }
  return text;
}

int64_t MemoryLedger::live_bytes() const {
  int64_t bytes = 0;
  for (int i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    const bool elsewhere = category == MemoryCategory::kept || category == MemoryCategory::pinned ||
                           category == MemoryCategory::nvme;
    if (!elsewhere) bytes += use(category).live_bytes;
  }
  return bytes;
}

MemoryShortage MemoryLedger::shortage(const MemoryRequest& request, size_t missing) const {
  MemoryShortage shortage{request.nbytes, request.category, missing, {}};
  for (size_t i = 0; i < entries_.size(); ++i) shortage.live_bytes[i] = entries_[i].live.load();
  return shortage;
}

}  // namespace zerorun
