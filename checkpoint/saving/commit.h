#pragma once

#include "checkpoint/saving/prepared_save.h"
#include "zerorun/checkpoint.h"

namespace zerorun {

// Collective. Makes what the ranks have written the checkpoint of its tag, on every disk; `own`:
// this rank's file. Throws IoError on all ranks; what is written then is the caller's to discard.
void commit_save(EngineStates& engine, Communicator& comm, PreparedSave& save,
                 const Manifest::ShardFile& own, const SaveOptions& options);

}  // namespace zerorun
