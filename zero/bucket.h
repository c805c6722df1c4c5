#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "zero/partition.h"
#include "zero/sharding.h"
#include "zero/state_chunks.h"
#include "zerorun/communicator.h"
#include "zerorun/device.h"
#include "zerorun/engine.h"
#include "zerorun/tensor.h"

namespace zerorun {

// Parameters that communicate together, and the flat memory that they view.
struct Bucket {
  int index = 0;
  std::string label;  // "bucket 3 (h.0.attn.weight .. h.2.mlp.bias)"
  BucketPlan plan;
  BucketLayout layout;

  // Parameters, in the model's dtype. `param_full` has no data while a sharded bucket is released.
  TensorView param_shard;
  TensorView param_full;
  bool resident = false;  // sharded, but all shards lie in memory of this host: always addressable

  // The part of the bucket whose optimizer states and reduced gradient this rank holds: its shard,
  // or the whole bucket at stage 0.
  int64_t held_from = 0;
  int64_t held_numel = 0;
  // A part of it, the same on all ranks but for rounding, is offloaded to the host.
  bool offloaded = false;
  int64_t host_from = 0;  // first element of the held part that is; held_numel when none is
  std::vector<StateChunk> chunks;  // of the held part; none when frozen
  // Where its shard moves between the device and where it rests (Sharding::moves_parameters): the
  // chunks in which it does, which are those of the states.
  std::vector<StateChunk> param_chunks;

  // Gradients. `grad` is where backward writes below stage 2 (from stage 2 on: a pool slot).
  // `reduced` and `host_reduced` are the held part of the reduced gradient before and from
  // `host_from`.
  TensorView grad;
  TensorView reduced;
  TensorView host_reduced;
  Event host_ready;  // host_reduced is complete

  // A part of the held part that does not span host_from.
  TensorView reduced_part(int64_t begin, int64_t numel) const {
    return begin < host_from ? reduced.slice(begin, numel)
                             : host_reduced.slice(begin - host_from, numel);
  }
  // Parts of parameters in `numel` elements of the held part from `begin` on that lie in this
  // rank's shard: at stage 0 each rank holds all, and adds only these to a sum over ranks.
  std::vector<Interval> own_intervals(int rank, int64_t begin, int64_t numel) const;
};

// What every part of the engine needs to know; constant after construction.
struct EngineContext : Sharding {
  Device& device;
  Communicator& comm;
};

// Whether the reduced gradient replaces the gradient that it was made from: below stage 2, with one
// micro-step and one dtype.
bool reduces_in_place(const Sharding& sharding);

// Elements of all buckets' memory on one rank.
struct BucketNumels {
  int64_t replicated = 0;  // parameters that every rank holds in full
  int64_t sharded = 0;     // this rank's part of those that are gathered where they rest
  int64_t home = 0;        // gradients that stay where backward writes them
  int64_t reduced = 0;     // reduced gradients that rest on the device, beside those
};
BucketNumels count_numels(const Sharding& sharding, std::span<const Bucket> buckets);

// Owner of the buckets' parameter memory and of their gradient memory outside the pool.
class BucketMemory {
 public:
  // Collective. Allocates and sets the views of all buckets.
  BucketMemory(const EngineContext& context, std::vector<Bucket>& buckets);

 private:
  void place_replicated(std::vector<Bucket>& buckets, int64_t total);
  void place_sharded(std::vector<Bucket>& buckets, int64_t total);
  void place_gradients(std::vector<Bucket>& buckets, int64_t home, int64_t reduced);
  // One block for all; nothing when the transport cannot give it.
  std::optional<TensorView> share(int64_t numel, Sharing sharing, MemoryCategory category);

  const EngineContext& context_;
  std::vector<Buffer> buffers_;
  std::vector<std::shared_ptr<void>> ledger_;
};

// Buckets with their layouts; memory comes later.
std::vector<Bucket> make_buckets(const Sharding& sharding, std::span<const int64_t> numels,
                                 std::span<const ModuleId> modules);

}  // namespace zerorun
