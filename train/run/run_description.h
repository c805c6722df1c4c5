#pragma once

#include <nlohmann/json_fwd.hpp>

#include "train/run/run_setup.h"
#include "zerorun/communicator.h"
#include "zerorun/device.h"

namespace zerorun::train {

// What the first line of a metrics file says of its run: settings, environment, the plan of its
// memory, and the most that its ranks reach. Collective.
nlohmann::ordered_json run_description(const RunSetup& setup, Communicator& comm, Device& device);

}  // namespace zerorun::train
