#include "device/memory_ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

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
    switch (category) {
      case MemoryCategory::kept:
      case MemoryCategory::pinned:
      case MemoryCategory::nvme:
        continue;
      default:
        bytes += use(category).live_bytes;
    }
  }
  return bytes;
}

namespace {

struct Remedy {
  MemoryCategory category;
  std::string_view setting;
};
// From what costs a step the least time to what costs the most.
constexpr auto kRemedies = std::to_array<Remedy>({
    {MemoryCategory::optimizer, "zero_optimization.stage 1 on more ranks or offload_optimizer"},
    {MemoryCategory::gradients, "zero_optimization.stage 2"},
    {MemoryCategory::buckets, "a smaller reduce_bucket_size"},
    {MemoryCategory::activations, "a smaller train_micro_batch_size_per_gpu or recomputation"},
    {MemoryCategory::parameters, "zero_optimization.stage 3"},
});

}  // namespace

std::string MemoryLedger::advice(size_t missing) const {
  std::string enough;
  std::string together;
  for (const auto& [category, setting] : kRemedies) {
    const auto held = static_cast<size_t>(std::max<int64_t>(0, use(category).live_bytes));
    if (held == 0) continue;
    std::string& list = held >= missing ? enough : together;
    list += fmt::format("{}{} (acts on {} of {})", list.empty() ? "" : "; ", setting,
                        format_bytes(held), name_of(category));
  }
  if (!enough.empty()) return "Any of these can make room: " + enough;
  if (!together.empty()) return "No setting frees enough by itself; together: " + together;
  return "Use more ranks, a smaller model or a smaller micro-batch";
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
