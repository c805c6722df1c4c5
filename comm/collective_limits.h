#pragma once

#include <array>

#include "zerorun/communicator.h"
#include "zerorun/device.h"

namespace zerorun {

// Measures the rate of large collectives on `device`, one kind at a time, with all ranks taking
// part: bytes of the full tensor per second, indexed by Collective. The rate is 0 for kinds that
// were not measured, and for all kinds if there is one rank. Usually takes 0.1 s. Collective.
std::array<double, kCollectives> measure_collectives(Communicator& comm, Device& device);

}  // namespace zerorun
