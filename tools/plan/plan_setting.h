#pragma once

#include <string>
#include <vector>

#include "zerorun/config.h"

namespace zerorun {

// A stage and what is offloaded.
struct Setting {
  int stage = 0;
  OffloadDevice optimizer = OffloadDevice::none;
  double ratio = 1.0;
  OffloadDevice param = OffloadDevice::none;
};

const char* name_of(OffloadDevice device);
std::string describe(const Setting& setting);
// The rows of the table, and what --fit chooses from: nothing offloaded; then as little as
// possible, in memory before on disk; a lower stage, which gathers less, before a higher one.
std::vector<Setting> all_settings();
// From the fastest to the slowest. Stage 1 sends as much as stage 0 and never needs more.
std::vector<Setting> by_speed();

}  // namespace zerorun
