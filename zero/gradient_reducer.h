#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "zero/bucket_memory.h"
#include "zero/gradient_inspector.h"
#include "zero/gradient_norm.h"
#include "zero/offload.h"
#include "zerorun/engine.h"

namespace zerorun {

// Lends flat gradient buffers to buckets from their first gradient to the end of their reduction.
// Slots lie in memory that peers read in place, where the transport can do that. When all are taken
// by buckets that still wait for gradients, private memory helps out: that costs a copy, never
// correctness. Other transports get ordinary memory in any case: ranks that take different paths
// through a model use different slots, and NCCL may be given registered memory by all ranks, at one
// offset, or by none.
class GradientPool {
 public:
  GradientPool(const EngineContext& context, DType dtype, int64_t slot_numel, int slots);

  struct Slot {
    TensorView view;
    Event free_after;      // the reduction that read it last
    int64_t released = 0;  // how many releases of the pool were before its last one
    bool in_use = false;
    bool shared = true;
    Buffer private_memory;
  };
  // For writing on the inline stream, which waits for the reduction that read the slot last: the
  // one that began first, so that ranks which do the same use the same slots.
  int acquire(int64_t numel);
  TensorView view(int slot, int64_t numel) const;
  void release(int slot, Event after);
  // Frees private memory whose reductions are done.
  void trim();

 private:
  const EngineContext& context_;
  const DType dtype_;
  Buffer arena_;
  std::shared_ptr<void> ledger_entry_;
  std::vector<Slot> slots_;
  int64_t releases_ = 0;
};

// What GradientReducer keeps in flight.
struct GradientPools {
  int64_t slot_numel = 0;  // of the largest bucket
  int slots = 0;           // in the parameters' dtype
  int comm_slots = 0;      // in the dtype of gradients on their way
};
GradientPools gradient_pools(const Sharding& sharding, std::span<const Bucket> buckets);

// From a parameter's gradient to its bucket's reduced gradient.
//
// Each micro-step reduces every trainable bucket once, in the buckets' order, on every rank: a
// bucket goes out when its gradients and all earlier buckets are in, and the end of the micro-step
// sends what is left, with zeros for parameters that were not used. Adding up micro-steps after
// reduction keeps one order of summation at every stage.
// size: the state of a micro-step beside that of the reductions in flight
class GradientReducer {
 public:
  // `inspector` sees each bucket before its reduction, `norm` after the last micro-step's;
  // `offload` is null when nothing is offloaded.
  GradientReducer(const EngineContext& context, std::span<const Bucket> buckets,
                  BucketMemory& memory, GradientInspector& inspector, GradientNorm& norm,
                  Stream& stream, Offload* offload);

  GradientView gradient(ParameterId parameter);
  void ready(ParameterId parameter);
  // Ends a micro-step; true when it was the batch's last.
  bool end_micro_step();
  // As Engine::extend_batch.
  void extend_batch();
  // As Engine::drop_batch.
  void drop_batch();
  // As Engine::set_accumulation_boundary.
  void set_boundary(std::optional<bool> boundary);
  // Waits for all reductions.
  void wait();

 private:
  enum class State : uint8_t { idle, filling, launched };
  // carried: by an earlier micro-step whose gradient was not reduced.
  enum class Contribution : uint8_t { none, carried, written, complete };
  struct Progress {
    State state = State::idle;
    int incomplete = 0;  // parameters that are not complete
    int slot = -1;
    int comm_slot = -1;
    TensorView buffer;
    Event done;
  };
  struct Location {
    int bucket = -1;  // -1: frozen
    int64_t offset = 0;
    int64_t numel = 0;
  };

  const Location& locate(ParameterId parameter) const;
  void open(int bucket);
  void complete_missing(int bucket);
  void launch_ready();
  void launch(int bucket);
  // Reduces what goes out and brings it to where it rests.
  void reduce(const Bucket& bucket, TensorView outgoing, Progress& progress);
  // Whether this micro-step ends the batch.
  bool is_last() const;
  // Whether this micro-step's gradients stay with this rank, to be reduced with the next one's:
  // where reduction is in place, there is no room for a sum of reduced gradients.
  bool carries() const;
  // Scales and casts; returns what goes out.
  TensorView prepare(Progress& progress);

  const EngineContext& context_;
  const std::span<const Bucket> buckets_;
  BucketMemory& memory_;
  GradientInspector& inspector_;
  GradientNorm& norm_;
  Stream& stream_;
  Offload* const offload_;
  std::optional<GradientPool> pool_;
  std::optional<GradientPool> comm_pool_;    // when gradients travel in a dtype of their own
  std::vector<Location> locations_;          // by parameter
  std::vector<Contribution> contributions_;  // by parameter, this micro-step
  std::vector<Progress> progress_;           // by bucket, this micro-step
  std::vector<int> schedule_;                // trainable buckets, in order
  size_t next_ = 0;                          // first of the schedule that is not launched
  int64_t micro_step_ = 0;                   // reduced ones of this batch
  std::optional<bool> boundary_;
};

}  // namespace zerorun
