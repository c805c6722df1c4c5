#pragma once

#include <array>

#include "zerorun/communicator.h"
#include "zerorun/device.h"

namespace zerorun {

// Bytes per second of the full tensor that large collectives of all ranks reach, each by itself, on
// `device`; 0 for operations that were not tried, as all are where there is one rank. Takes a tenth
// of a second as a rule. Collective.
std::array<double, kCollectives> measure_collectives(Communicator& comm, Device& device);

}  // namespace zerorun
