#pragma once

#include <cstdint>
#include <vector>

#include "zero/groups/engine_context.h"
#include "zero/parameters/gather_order.h"
#include "zero/parameters/quantized_gather.h"
#include "zero/parameters/updated_parameters.h"
#include "zero/storage/bucket_memory.h"
#include "zero/storage/offloaded_parameters.h"
#include "zerorun/engine.h"

namespace zerorun {

// Makes the sharded parameters of a module full for as long as they are used (stage 3).
//
// The device's inline stream waits for a gather, and so does the caller where host code may read
// the device's memory. Memory that is dropped is free once that stream has done what it was given.
//
// Where there is a second copy (hpZ), the first gather after parameters changed writes it, and all
// later ones are from there.
//
// A gather ahead that its peers take part in cannot be left out on the one rank that has no memory
// for it: it goes to pinned host memory there, and to the device's when it is used.
//
// It gathers ahead in the learned order: the next module, and further ones as long as all of them
// are within prefetch_bucket_size. It keeps released parameters full when they are used again
// within max_reuse_distance; max_live_parameters bounds both.
class ParameterGatherer {
 public:
  // Gathers run on `stream`. `parameters` is null when shards are gathered from where they are
  // stored.
  ParameterGatherer(const EngineContext& context, std::span<const Bucket> buckets,
                    BucketMemory& memory, int module_count, Stream& stream,
                    OffloadedParameters* parameters);

  // Full copies lie there from now on; as EngineHooks::use_full_memory.
  void use_memory(EngineHooks::FullMemory memory);

  // `step_follows`: this micro-step is the last before parameters change, so nothing is gathered
  // ahead beyond its end.
  void gather(ModuleId module, bool step_follows);
  void release(ModuleId module);
  void end_micro_step() { order_.end_micro_step(); }
  // Parameters are about to change: full copies that nobody holds are dropped, and no gather reads
  // shards any more.
  void invalidate();

  // What makes a step visible to all ranks.
  UpdatedParameters& updates() { return updates_; }
  const UpdatedParameters& updates() const { return updates_; }

  // A hash, below kMaxOrderHash, of the gathers so far that other ranks had to take part in. Ranks
  // with different ones gathered each other's parameters.
  static constexpr int64_t kMaxOrderHash = int64_t{1} << 24;
  int64_t order_hash() const { return order_hash_; }

 private:
  // sharded -> gathering -> full -> sharded
  enum class State : uint8_t { sharded, gathering, full };
  struct Residence {
    State state = State::sharded;
    Event ready;
    Buffer full;
    Buffer parked;  // on the host, in the place of `full` until the first use
  };
  struct Module {
    std::vector<int> buckets;
    int64_t numel = 0;
    int holders = 0;               // gathers without release
    bool has_second_copy = false;  // of the parameters as they are now
  };

  // Memory for all that the module needs or, when there is not enough, for none of it.
  void take_memory(const Module& module, const EngineHooks::FullMemory& memory,
                   Buffer Residence::*place);
  // The same for a gather ahead; false when it is left out for want of memory.
  bool take_memory_ahead(const Module& module);
  // Brings what was gathered to the host to memory of the device.
  void unpark(const Bucket& bucket);
  // The module's gathers, as one operation.
  void start(Module& module);
  void start(const Bucket& bucket, bool from_second_copy);
  // Does what is left on the stream when all of a module's shards are there; false if nothing is.
  bool complete(Module& module);
  // The inline stream's later work finds the gather done and, for use, the bucket on the device.
  enum class Next : uint8_t { use, drop };
  void finish(const Bucket& bucket, Next next);
  void drop(const Bucket& bucket);
  void prefetch(bool step_follows);
  // True if a gather of this bucket needs the other ranks' help.
  bool is_collective(const Bucket& bucket) const;
  void make_room(int64_t numel);
  bool is_sharded(const Module& module) const;

  const EngineContext& context_;
  const std::span<const Bucket> buckets_;
  BucketMemory& bucket_memory_;
  Stream& stream_;
  OffloadedParameters* const parameters_;
  QuantizedGather quantized_;
  UpdatedParameters updates_;
  EngineHooks::FullMemory memory_;
  std::vector<Module> modules_;
  GatherOrder order_;
  std::vector<Residence> residences_;  // by bucket
  Event gathered_;                     // all that was started so far
  int parked_ = 0;                     // residences on the host
  int64_t live_ = 0;                   // elements of full copies
  int64_t order_hash_ = 0;
};

}  // namespace zerorun
