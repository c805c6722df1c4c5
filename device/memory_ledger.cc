#include "device/memory_ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "core/format_bytes.h"

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

void MemoryLedger::use_settings(const MemorySettings& settings) {
  const std::lock_guard lock(mutex_);
  settings_ = settings;
}

std::vector<MemoryLedger::Remedy> MemoryLedger::remedies(const MemoryRequest& request) const {
  const MemorySettings now = [&] {
    const std::lock_guard lock(mutex_);
    return settings_;
  }();
  const auto wanted = [&](MemoryCategory category) {
    const auto live = static_cast<size_t>(std::max<int64_t>(0, use(category).live_bytes));
    return live + (category == request.category ? request.nbytes : 0);
  };
  const size_t optimizer = wanted(MemoryCategory::optimizer);
  const size_t gradients = wanted(MemoryCategory::gradients);
  std::vector<Remedy> found;
  if (now.stage == 0) {
    found.push_back({"zero_optimization.stage 1 on more ranks, or with offload_optimizer",
                     "optimizer", optimizer});
  } else if (!now.offload_optimizer && now.stage == 1) {
    found.push_back({"offload_optimizer", "optimizer", optimizer});
  } else if (!now.offload_optimizer) {  // what rests of gradients goes with the states
    found.push_back({"offload_optimizer", "optimizer and gradients", optimizer + gradients});
  }
  if (now.stage < 2) found.push_back({"zero_optimization.stage 2", "gradients", gradients});
  // A bucket of stage 3 is a module.
  found.push_back(
      {now.stage < 3 ? "a smaller reduce_bucket_size" : "a smaller stage3_max_live_parameters",
       "buckets", wanted(MemoryCategory::buckets)});
  found.push_back({"a smaller train_micro_batch_size_per_gpu or recomputation", "activations",
                   wanted(MemoryCategory::activations)});
  if (!now.offload_param) {
    found.push_back({now.stage < 3 ? "zero_optimization.stage 3" : "offload_param", "parameters",
                     wanted(MemoryCategory::parameters)});
  }
  std::erase_if(found, [](const Remedy& remedy) { return remedy.nbytes == 0; });
  return found;
}

std::string MemoryLedger::advice(const MemoryRequest& request, size_t missing) const {
  std::string enough;
  std::string together;
  size_t sum = 0;
  for (const Remedy& remedy : remedies(request)) {
    std::string& list = remedy.nbytes >= missing ? enough : together;
    list += fmt::format("{}{} (acts on {} of {})", list.empty() ? "" : "; ", remedy.setting,
                        format_bytes(remedy.nbytes), remedy.of);
    sum += remedy.nbytes;
  }
  if (!enough.empty()) return "Any of these can make room: " + enough;
  if (sum >= missing && sum > 0) {
    return "No setting frees enough by itself; together: " + together;
  }
  return "No setting makes enough room: use more ranks, a smaller model or a GPU with more memory";
}

}  // namespace zerorun
