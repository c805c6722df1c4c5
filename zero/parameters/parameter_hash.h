#pragma once

#include <cstdint>
#include <span>

#include "zero/groups/engine_context.h"
#include "zero/storage/bucket_memory.h"
#include "zero/storage/offloaded_parameters.h"

namespace zerorun {

// Hash of all parameters' bytes: the sum over their blocks of kNormBlock elements of XXH3(bytes,
// seed = XXH3(name) + block index). Shards are cut on the grid of blocks, so ranks hash what they
// own and add up. Collective; throws CommError when a parameter's replicas differ between ranks.
// `parameters` is null when no shards move.
uint64_t hash_parameters(const EngineContext& context, std::span<const Bucket> buckets,
                         const BucketMemory& memory, OffloadedParameters* parameters);

}  // namespace zerorun
