#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "zero/partition/partition.h"
#include "zero/partition/sharding.h"
#include "zerorun/device.h"
#include "zerorun/tensor.h"

namespace zerorun {

// The elements of a bucket for which this rank stores optimizer states and the reduced gradient:
// its shard from stage 1 on, the whole bucket at stage 0.
struct StoredRange {
  int64_t begin = 0;  // within the bucket
  int64_t numel = 0;
  bool offloaded = false;  // a part is on the host, of equal size on all ranks up to rounding
  int64_t host_from = 0;   // first element of that part, within the range; numel: it is empty
};

// The memory of a bucket's parameters, in Bucket::dtype.
struct BucketParameters {
  TensorView shard;       // a part of `full`, or apart; without data if Bucket::moves_params
  TensorView full;        // without data while a sharded bucket is released
  TensorView stored;      // Bucket::stored of them; without data if Bucket::moves_params
  TensorView secondary;   // this rank's part of the hpZ partition; without data if there is none
  TensorView wire;        // the bytes of a quantized gather, in memory that modules share
  bool resident = false;  // sharded, but always full: all shards are in this host's memory

  // A sharded bucket is full between gather and release.
  enum class State : uint8_t { sharded, gathering, full };
  State state = State::sharded;
  Event gathered;      // the last gather is complete
  Buffer full_memory;  // of `full`, if it is not resident
  Buffer pinned;       // host memory in its place, until the first use
  Event updated;       // the gather of a step's result; empty: there is nothing to wait for
};

// The gradients of a trainable bucket: where backward writes them, their reduction, and the sum.
struct BucketGradients {
  TensorView full;  // where backward writes below stage 2; from stage 2 on it is a slot of a pool
  // The stored range of the reduced gradient: `reduced` has the elements before
  // StoredRange::host_from, `host_reduced` the others.
  TensorView reduced;
  TensorView host_reduced;
  Event host_ready;  // host_reduced is complete
  Buffer earlier;    // the sum of earlier rounds, while `reduced` has this round's gradient
  // LoCo: the rounding errors of the two steps of a quantized reduction.
  TensorView lost_within;
  TensorView lost_across;

  // A round: GradientBatch counts, GradientReducer has the memory.
  enum class State : uint8_t { empty, filling, reduced };
  State state = State::empty;
  int incomplete = 0;  // parameters whose gradient is not complete
  TensorView filled;   // the gradients, before the reduction
  int slot = -1;       // of `filled`, in the pool
  int comm_slot = -1;  // of `filled` in communication_data_type
  Event done;          // the reduction is complete
};

// A group of parameters that communicate together: their layout in flat memory, this rank's shard
// of it, and their memory. The layout is constant, and equal on all ranks except for the ranges.
// It is complete without memory, which BucketMemory allocates.
struct Bucket {
  int index = 0;
  std::string label;  // "bucket 3 (h.0.attn.weight .. h.2.mlp.bias)"
  BucketPlan plan;
  BucketLayout layout;
  DType dtype = DType::fp32;  // of the parameters: the engine's, except for some frozen ones
  int64_t owned_begin = 0;    // begin of this rank's shard, of layout.shard_numel elements
  bool owned = true;          // this rank owns its shard; else the rank of another replica does
  StoredRange stored;
  // This rank's parameter shard is stored off the device and is copied chunk by chunk.
  bool moves_params = false;
  // Its gathers are quantized (QuantizedGather): `full` has the decoded values, and the shard is
  // memory of its own at all stages.
  bool quantized_gather = false;
  std::vector<Chunk> chunks;  // of the stored range
  BucketParameters params;
  BucketGradients grads;

  // Bytes of the full bucket, including padding.
  int64_t full_nbytes() const { return nbytes_of(layout.padded_numel(), dtype); }
  // The intervals of parameters within `numel` elements of the stored range, from `begin` on, that
  // are in this rank's shard. (At stage 0 the stored range is larger than the shard.)
  std::vector<Interval> shard_intervals(int64_t begin, int64_t numel) const;
  // Those of these intervals that this rank owns. A sum over ranks counts each element on its owner
  // only.
  std::vector<Interval> owned_intervals(int64_t begin, int64_t numel) const {
    return owned ? shard_intervals(begin, numel) : std::vector<Interval>();
  }
  // Sets the padding to zero in `part` of the bucket, which begins at element `begin`. Padding may
  // have any values otherwise, and would change the scale of a quantized block.
  void clear_padding(int64_t begin, TensorView part, Device& device, Stream& stream) const;
  // The parameters of a chunk. Not with moves_params.
  TensorView params_of(const Chunk& chunk) const {
    return params.stored.slice(chunk.begin, chunk.numel());
  }
  // `numel` elements of the reduced gradient from `begin` of the stored range on. All of them are
  // before StoredRange::host_from, or none.
  TensorView reduced_part(int64_t begin, int64_t numel) const {
    return begin < stored.host_from ? grads.reduced.slice(begin, numel)
                                    : grads.host_reduced.slice(begin - stored.host_from, numel);
  }
};

std::vector<Bucket> make_buckets(const Sharding& sharding, std::span<const int64_t> numels,
                                 std::span<const ModuleId> modules);

// The place of a parameter in its bucket.
struct ParameterPlace {
  int bucket = -1;  // -1: other ranks hold the parameter, or it is tied to another one
  int64_t offset = 0;
  int64_t numel = 0;
};

// An engine's buckets, and the place of each parameter in them.
class Buckets {
 public:
  // `parameters`: the number of the model's parameters.
  Buckets(std::vector<Bucket> buckets, size_t parameters);

  auto begin() { return buckets_.begin(); }
  auto end() { return buckets_.end(); }
  Bucket* data() { return buckets_.data(); }
  size_t size() const { return buckets_.size(); }
  Bucket& operator[](int index) { return buckets_.at(static_cast<size_t>(index)); }

  // Not for tied parameters.
  const ParameterPlace& place_of(ParameterId id) const {
    return places_.at(static_cast<size_t>(id));
  }
  // The bucket of a parameter that this rank holds.
  const Bucket& of(ParameterId id) const {
    return buckets_.at(static_cast<size_t>(place_of(id).bucket));
  }

 private:
  std::vector<Bucket> buckets_;
  std::vector<ParameterPlace> places_;
};

}  // namespace zerorun
