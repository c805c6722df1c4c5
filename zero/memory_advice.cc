#include "zero/memory_advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "core/format_bytes.h"

namespace zerorun {

namespace {

struct Remedy {
  std::string_view setting;
  std::string_view of;  // the memory that it acts on
  size_t nbytes = 0;
};

// From the one that costs a step the least time to the one that costs the most.
std::vector<Remedy> remedies(const MemorySettings& now, const MemoryShortage& shortage) {
  const auto wanted = [&](MemoryCategory category) {
    const int64_t live = shortage.live_bytes[static_cast<size_t>(category)];
    return static_cast<size_t>(std::max<int64_t>(0, live)) +
           (category == shortage.category ? shortage.nbytes : 0);
  };
  const size_t optimizer = wanted(MemoryCategory::optimizer);
  const size_t gradients = wanted(MemoryCategory::gradients);
  std::vector<Remedy> found;
  if (now.stage == 0) {
    found.push_back({"zero_optimization.stage 1 on more ranks, or with offload_optimizer",
                     "optimizer", optimizer});
  } else if (!now.offload_optimizer && now.stage == 1) {
    found.push_back({"offload_optimizer", "optimizer", optimizer});
  } else if (!now.offload_optimizer) {  // reduced gradients are stored with the states
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

std::string memory_advice(const MemorySettings& settings, const MemoryShortage& shortage) {
  std::string enough;
  std::string together;
  size_t sum = 0;
  for (const Remedy& remedy : remedies(settings, shortage)) {
    std::string& list = remedy.nbytes >= shortage.missing ? enough : together;
    list += fmt::format("{}{} (acts on {} of {})", list.empty() ? "" : "; ", remedy.setting,
                        format_bytes(remedy.nbytes), remedy.of);
    sum += remedy.nbytes;
  }
  if (!enough.empty()) return "Any of these can make room: " + enough;
  if (sum >= shortage.missing && sum > 0) {
    return "No setting frees enough by itself; together: " + together;
  }
  return "No setting makes enough room: use more ranks, a smaller model or a GPU with more memory";
}

}  // namespace

MemorySettings memory_settings(const Config& config) {
  const OffloadConfig& offload = config.offload;
  return {.stage = static_cast<int>(config.zero.stage),
          .offload_optimizer =
              offload.optimizer.device != OffloadDevice::none && offload.optimizer.ratio > 0,
          .offload_param = offload.param.device != OffloadDevice::none};
}

MemoryAdviser memory_adviser(const MemorySettings& settings) {
  return [settings](const MemoryShortage& shortage) { return memory_advice(settings, shortage); };
}

}  // namespace zerorun
