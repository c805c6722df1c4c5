#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "zero/groups/engine_context.h"
#include "zero/parameters/gathers.h"
#include "zero/partition/bucket.h"
#include "zero/storage/offloaded_parameters.h"
#include "zerorun/engine.h"

namespace zerorun {

// Learns the order in which modules are used and predicts the next ones, for prefetching.
//
// For each pair (previous module, current module) it remembers the module that followed. Forward,
// backward, evaluation and generation pass through different pairs, so they do not disturb each
// other's predictions. A wrong prediction costs time, never correctness.
class GatherOrder {
 public:
  // `numels`: the number of elements of each module.
  explicit GatherOrder(std::vector<int64_t> numels)
      : end_(static_cast<ModuleId>(numels.size())), numels_(std::move(numels)) {
    numels_.push_back(0);
    uses_.resize(numels_.size());
    known_.resize(numels_.size());
  }

  void record(ModuleId module);
  void end_micro_step() { record(end_); }
  // Predicts up to `count` modules that follow the last recorded one, as far as they are known.
  // Modules beyond the end of the micro-step are included only with `beyond_end`.
  std::vector<ModuleId> predict(int count, bool beyond_end = true) const;
  // The elements of other modules that are used before `module` is used again; nullopt if no reuse
  // is known.
  std::optional<int64_t> reuse_distance(ModuleId module) const;

 private:
  using Pair = std::pair<ModuleId, ModuleId>;
  // The last use of a module, and the elements of all uses up to its end.
  struct Use {
    Pair pair{-1, -1};
    int64_t end = 0;
  };

  // What is known of a pair.
  struct Known {
    ModuleId before;        // the pair's first module
    ModuleId next = -1;     // what followed
    int64_t distance = -1;  // from the use at that pair to the module's next one
  };
  // Null: nothing.
  const Known* find(Pair pair) const;
  Known& at(Pair pair);

  const ModuleId end_;  // marks the end of a micro-step, as a module without elements
  std::vector<int64_t> numels_;
  std::vector<Use> uses_;                  // by module
  std::vector<std::vector<Known>> known_;  // by the pair's second module, which few come before
  Pair last_{-1, -1};
  int64_t used_ = 0;  // elements of all uses so far
};

// Gathers the sharded parameters of a module before they are used and releases them afterwards
// (stage 3).
//
// The device's inline stream waits for a gather; so does the caller if host code can read the
// device's memory. Released memory may be reused after the work that was submitted to the inline
// stream.
//
// With an hpZ partition, the first gather after parameters changed writes it, and all later gathers
// read it.
//
// It prefetches in the learned order: the next module, and further modules as long as all of them
// have at most prefetch_bucket_size elements. Released parameters stay full if they are used again
// within max_reuse_distance elements. max_live_parameters bounds both; a module that is used sooner
// takes the place of one that is used later.
//
// All ranks have to take part in a prefetch that is a collective, even one without memory for it.
// That rank gathers into pinned host memory and copies the module to the device when it is used.
class ParameterGatherer {
 public:
  // Gathers run on `stream`. `parameters`: null if shards are gathered from where they are stored.
  ParameterGatherer(const EngineContext& context, std::span<Bucket> buckets, int module_count,
                    Stream& stream, OffloadedParameters* parameters);

  // Sets the memory of full copies; see EngineHooks::use_full_memory.
  void use_memory(EngineHooks::FullMemory memory);

  // `step_follows`: this micro-step is the last before parameters change, so nothing beyond its end
  // is prefetched.
  void gather(ModuleId module, bool step_follows);
  void release(ModuleId module);
  void end_micro_step() { order_.end_micro_step(); }
  // Called before parameters change. Drops full copies that are not in use. Later writes to shards
  // come after all gathers that read them.
  void invalidate();
  // All gathers so far are complete.
  const Event& gathered() const { return gathered_; }

  // Gathers the results of a step; see UpdatedParameters.
  UpdatedParameters& updates() { return updates_; }

  // A hash, below kMaxOrderHash, of the collective gathers so far. If it differs between ranks,
  // they have gathered different modules at the same time and their full parameters are wrong.
  // Its squares are summed over all ranks, up to 2^20 of them.
  static constexpr int64_t kMaxOrderHash = int64_t{1} << 20;
  static_assert(kMaxOrderHash <= std::numeric_limits<int64_t>::max() / kMaxOrderHash >> 20);
  int64_t order_hash() const { return order_hash_; }

 private:
  using State = BucketParameters::State;
  struct Module {
    std::vector<int> buckets;
    int64_t numel = 0;
    int use_count = 0;           // gathers that were not released yet
    bool has_secondary = false;  // the hpZ partition has the current values
  };

  // Allocates memory for all buckets of the module that need it or, if there is not enough, for
  // none.
  void take_memory(const Module& module, const EngineHooks::FullMemory& memory,
                   Buffer BucketParameters::*place);
  // The same for a prefetch. Returns false if it is left out for lack of memory.
  bool take_memory_to_prefetch(const Module& module);
  // Copies a bucket that was gathered into host memory to the device.
  void upload(Bucket& bucket);
  // Starts the gathers of the module, as one operation, and those of one bucket.
  void start(Module& module);
  void start(Bucket& bucket, bool from_secondary);
  // Submits the work that follows when all shards of a module are there. Returns false if there is
  // none.
  bool complete(Module& module);
  // Makes the inline stream's later work wait for the gather. `use`: the bucket is then on the
  // device.
  enum class Next : uint8_t { use, drop };
  void finish(Bucket& bucket, Next next);
  void drop(Bucket& bucket);
  Bucket& bucket(int index) const { return buckets_[static_cast<size_t>(index)]; }
  void prefetch(bool step_follows);
  // True if a gather of this bucket is a collective of all ranks that share it.
  bool is_collective(const Bucket& bucket) const;
  // Drops full copies that nobody holds, those that are used again last first, until so many more
  // elements are within max_live_parameters. Only copies whose next use is more than `distance`
  // elements away; if that is not enough, none is dropped. With a negative distance all may go.
  // Returns true if the elements are within the limit then.
  bool make_room(int64_t numel, int64_t distance);
  bool is_sharded(const Module& module) const;
  int64_t full_numel(const Module& module) const;

  const EngineContext& context_;
  const std::span<Bucket> buckets_;
  Stream& stream_;
  OffloadedParameters* const parameters_;
  QuantizedGather quantized_;
  UpdatedParameters updates_;
  EngineHooks::FullMemory memory_;
  std::vector<Module> modules_;
  GatherOrder order_;
  Event gathered_;
  int pinned_ = 0;     // buckets that were gathered into host memory
  int64_t numel_ = 0;  // elements of all sharded parameters
  int64_t live_ = 0;   // and of full copies
  int64_t order_hash_ = 0;
};

}  // namespace zerorun
