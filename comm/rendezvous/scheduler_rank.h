#pragma once

#include <optional>

#include "zerorun/communicator.h"

namespace zerorun {

// The rank of this process if a scheduler started it without zerorun's launcher: srun, or mpirun of
// Open MPI, MVAPICH, MPICH, Intel MPI or Cray; nullopt otherwise. MASTER_ADDR and MASTER_PORT, if
// set, are where rank 0 listens. Otherwise it listens on the first host of srun's step, or on this
// host if all ranks are on it, at a port computed from the job's number. Throws ConfigError if the
// variables are not sufficient.
std::optional<RankInfo> rank_from_scheduler();

}  // namespace zerorun
