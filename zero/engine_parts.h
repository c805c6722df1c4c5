#pragma once

#include <memory>
#include <vector>

#include "amp/step_decider.h"
#include "zero/gradients/gradient_reducer.h"
#include "zero/groups/engine_context.h"
#include "zero/parameters/parameter_gatherer.h"
#include "zero/partition/bucket.h"
#include "zero/partition/model_spec.h"
#include "zero/storage/bucket_memory.h"
#include "zero/storage/chunk_storage.h"
#include "zero/storage/offload.h"
#include "zero/timeline/straggler_watch.h"
#include "zero/update/sharded_step.h"

namespace zerorun {

// The streams of an engine's collectives.
class Lanes {
 public:
  // Without overlap_comm there is none, and collectives run on the inline stream.
  explicit Lanes(const EngineContext& context);

  // Reductions of gradients, and all that follows them in a step.
  Stream& reductions() { return reductions_ ? *reductions_ : inline_; }
  // Gathers of sharded parameters, with RankGroups::gathers.
  Stream& gathers() { return gathers_ ? *gathers_ : reductions(); }

  // Ends both when their work is done.
  void end();

 private:
  Stream& inline_;
  std::unique_ptr<Stream> reductions_;
  std::unique_ptr<Stream> gathers_;  // null: the same as reductions_
};

// What an engine is made of. Parts refer to those above them and end before them.
struct EngineParts {
  std::unique_ptr<const ModelSpec> model;
  std::unique_ptr<const EngineContext> context;
  std::unique_ptr<Lanes> lanes;
  std::unique_ptr<Buckets> buckets;
  std::unique_ptr<Offload> offload;  // null when nothing is offloaded
  std::unique_ptr<BucketMemory> memory;
  std::unique_ptr<ChunkStorage> storage;
  std::unique_ptr<ShardedStep> step;
  std::unique_ptr<StepDecider> decider;
  std::unique_ptr<GradientReducer> reducer;
  std::unique_ptr<ParameterGatherer> gatherer;
  std::unique_ptr<StragglerWatch> stragglers;

  // Null when shards are gathered from where they are stored.
  OffloadedParameters* moved_parameters() const {
    return offload ? offload->parameters.get() : nullptr;
  }
};

// Collective. `groups`: the number of parameter groups. Throws ConfigError like Engine::create.
EngineParts make_engine_parts(const Config& config, Device& device, Communicator& comm,
                              std::vector<ParameterSpec> specs, size_t groups,
                              const EngineGroups& others);

}  // namespace zerorun
