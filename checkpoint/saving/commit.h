#pragma once

#include "checkpoint/saving/prepared_save.h"
#include "zerorun/checkpoint.h"

namespace zerorun {

// Commits a save: its files become the checkpoint of its tag, on every disk. `own`: this rank's
// file. Throws IoError on all ranks; then the caller has to discard the files. Collective.
void commit_save(EngineStates& engine, Communicator& comm, PreparedSave& save,
                 const Manifest::ShardFile& own, const SaveOptions& options);

}  // namespace zerorun
