#pragma once

#include <nlohmann/json_fwd.hpp>

#include "train/run/run_setup.h"
#include "zerorun/communicator.h"
#include "zerorun/device.h"

namespace zerorun::train {

// Returns the description of the run for the first line of a metrics file: settings, environment,
// memory plan, and measured peak rates of the ranks. Collective.
nlohmann::ordered_json run_description(const RunSetup& setup, Communicator& comm, Device& device);

}  // namespace zerorun::train
