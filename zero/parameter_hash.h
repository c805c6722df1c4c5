#pragma once

#include <cstdint>
#include <span>

#include "zero/bucket_memory.h"
#include "zero/offloaded_parameters.h"

namespace zerorun {

// Hash of all parameters' bytes: the sum over their chunks of kNormBlock elements of XXH3(bytes,
// seed = XXH3(name) + chunk index). Shards are cut on the chunk grid, so ranks hash what they hold
// and add up. Collective; throws CommError when a parameter's replicas differ between ranks.
// `parameters` is null when shards are gathered from where they rest.
uint64_t hash_parameters(const EngineContext& context, std::span<const Bucket> buckets,
                         const BucketMemory& memory, OffloadedParameters* parameters);

}  // namespace zerorun
