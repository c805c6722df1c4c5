#include "train/report/rank_figures.h"

#include <unistd.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

namespace zerorun::train {

namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson milliseconds(double seconds) {
  return std::isnan(seconds) ? OrderedJson() : OrderedJson(1e3 * seconds);
}

void add_split(OrderedJson& line, const std::string& name,
               const std::optional<SplitSeconds>& split) {
  line[name + "_hidden_ms"] = split ? milliseconds(split->hidden) : OrderedJson();
}

// Returns the resident memory, including shared memory, as for PyTorch programs.
int64_t rss_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t all = 0;
  int64_t resident = 0;
  statm >> all >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

}  // namespace

RankFigures::RankFigures(Engine& engine, Communicator& comm)
    : engine_(engine), comm_(comm), work_(engine, comm), counted_(comm.stats()) {}

OrderedJson RankFigures::take() {
  const StepWork work = work_.take();
  OrderedJson line;
  add_split(line, "reduce", work.reductions);
  add_split(line, "gather", work.gathers);
  if (work.offload && work.offload->any()) {
    line["offload_ms"] = milliseconds(work.offload->exposed);
    add_split(line, "offload", work.offload);
  }
  line["collectives"] = take_collectives();
  for (int i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    const MemoryUse use = engine_.device().memory_use(category);
    if (use.peak_bytes == 0) continue;
    line["memory"][name_of(category)] = use.live_bytes;
    line["memory_peak"][name_of(category)] = use.peak_bytes;
  }
  line["rss_bytes"] = rss_bytes();
  return line;
}

OrderedJson RankFigures::take_collectives() {
  const CommStats before = std::exchange(counted_, comm_.stats());
  const auto earlier_s = std::exchange(seconds_, work_.collective_seconds());
  OrderedJson found = OrderedJson::object();
  for (int i = 0; i < kCollectives; ++i) {
    const auto op = static_cast<Collective>(i);
    const int64_t calls = counted_[op].calls - before[op].calls;
    if (calls == 0) continue;
    const auto at = static_cast<size_t>(i);
    found[name_of(op)] = {calls, counted_[op].bytes - before[op].bytes,
                          milliseconds(seconds_[at] - earlier_s[at])};
  }
  return found;
}

}  // namespace zerorun::train
