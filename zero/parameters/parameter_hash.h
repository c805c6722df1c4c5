#pragma once

#include <cstdint>
#include <span>

#include "zero/groups/engine_context.h"
#include "zero/partition/bucket.h"
#include "zero/storage/chunk_storage.h"

namespace zerorun {

// A hash of the bytes of all parameters: the sum, over all blocks of kNormBlock elements, of
// XXH3(bytes, seed = XXH3(name) + block index). Shards are cut at multiples of a block, so each
// rank hashes the blocks that it owns and the hashes are added. Collective. Throws CommError if
// replicas of a parameter differ between ranks.
uint64_t hash_parameters(const EngineContext& context, std::span<const Bucket> buckets,
                         ChunkStorage& storage);

}  // namespace zerorun
