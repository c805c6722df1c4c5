#pragma once

#include <optional>

#include "zerorun/communicator.h"

namespace zerorun {

// The rank of this process among those that a scheduler has started without a launcher: srun, or
// mpirun of Open MPI, MVAPICH, MPICH, Intel MPI or Cray. MASTER_ADDR and MASTER_PORT, where they
// are set, say where rank 0 listens; else it is the first host of srun's step, or this host if all
// are here, and a port that follows from the number of the job. Throws ConfigError when the
// variables do not say enough.
std::optional<RankInfo> rank_from_scheduler();

}  // namespace zerorun
