#pragma once

#include <vector>

#include "launcher/environment.h"
#include "launcher/ranks/cpus.h"
#include "launcher/ranks/resources.h"

namespace zerorun {

// The machine that this launcher runs on, as it is now.
struct ThisHost {
  Environment environment;
  std::vector<Core> cores;
  HostResources resources;
};

// Examines this host. `own_program`: the ranks use zerorun's own CUDA backend, so check that it
// works if GPUs may be used. `core_list` limits the CPUs; empty = all that this process may use.
// Throws ConfigError if it names a CPU that this process may not use.
ThisHost look_at_this_host(Accelerator accelerator, bool own_program, const std::string& core_list);

}  // namespace zerorun
