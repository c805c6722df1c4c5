#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "offload/host_pipeline.h"
#include "offload/state_store.h"
#include "optim/optimizer.h"
#include "zero/bucket_memory.h"
#include "zero/offloaded_parameters.h"
#include "zerorun/engine.h"

namespace zerorun {

// Where the states of chunks rest, by Chunk::on_host.
struct StateStores {
  std::unique_ptr<StateStore> device;
  std::unique_ptr<StateStore> host;  // null when nothing is offloaded
};

// By ParameterSpec::use_muon: the rule for this bucket.
const Optimizer& rule_of(std::span<const Optimizer> rules, const Bucket& bucket);
// The layouts of the states of all chunks on the host, or on the device, by Chunk::state_index.
std::vector<StateLayout> state_layouts(const Sharding& sharding, std::span<const Optimizer> rules,
                                       std::span<const Bucket> buckets, bool on_host);

// Elements in fp32 of what rules with two passes keep between them, for one bucket at a time.
struct DirectionSize {
  int64_t numel = 0;
  int64_t work = 0;  // of orthogonalization
};
DirectionSize direction_numel(const Sharding& sharding, std::span<const Optimizer> rules,
                              std::span<const Bucket> buckets);

// The optimizer states of this rank's shards and the steps over them.
class ShardedOptimizer {
 public:
  // Collective. `rules` as of make_optimizers; `pipeline` is null when no states are
  // offloaded, `parameters` when none move. Throws ConfigError when a parameter does not fit its
  // rule, naming it.
  ShardedOptimizer(const EngineContext& context, std::span<const Bucket> buckets,
                   BucketMemory& memory, std::vector<Optimizer> rules, StateStores stores,
                   HostPipeline* pipeline, OffloadedParameters* parameters);

  using Publish = std::function<void(const Bucket&)>;
  // Updates every trainable bucket's shard (master, states, and the parameter in its dtype) and
  // calls `publish` for it; what `publish` puts on `comm_stream` finds the updated shard. Offloaded
  // chunks are updated beside the others. `step` counts from 1; `grad_scale` multiplies the
  // gradient. Collective; what the ranks exchange goes over `comm_stream`.
  void step(int64_t step, float grad_scale, std::span<const ParameterGroup> groups,
            Stream& comm_stream, const Publish& publish);

  std::span<const StateSpec> state_specs(const Bucket& bucket) const;

  // zero/state_access.cc
  // As Engine::initialize_parameters; `publish` as in step.
  void initialize(const Engine::FillFunction& fill, const Publish& publish);
  // As Engine::state_intervals, of an owning parameter; `states`: without parameters that rest
  // elsewhere.
  enum class Parts : uint8_t { states, all };
  std::vector<StateInterval> intervals(Parts parts, std::optional<ParameterId> only = std::nullopt);
  // As Engine::visit_states.
  void visit(StateAccess access, const Engine::StateVisit& visit);
  // What rests in files may have been changed there.
  void accept_changes();
  // As Engine::refresh_from_masters.
  void recast(Stream& comm_stream, const Publish& publish);

 private:
  // Neighbours within a chunk that take the same step; elements of the stored range.
  struct Run {
    int64_t begin = 0;
    int64_t end = 0;
    int group = 0;
    Interval first;  // what it begins with; all of it when runs are not merged
  };
  // The scalars of a step that are the same for all parameters.
  struct Step {
    int64_t count = 0;
    float grad_scale = 1.0F;
    std::span<const ParameterGroup> groups;
    const ParameterGroup& of(const Run& run) const {
      return groups[static_cast<size_t>(run.group)];
    }
  };
  // A chunk while it is acquired, and who computes on it.
  struct Work {
    const Bucket& bucket;
    const Chunk& chunk;
    Device& device;
    Stream& stream;
    std::vector<TensorView> views;  // master and states
    TensorView param;               // of the chunk, in its dtype, where the device writes it
  };

  void check_matrices(const Bucket& bucket) const;
  std::vector<Run> runs_of(const Bucket& bucket, const Chunk& chunk) const;
  const std::vector<Run>& runs(const Work& work) const;
  StateStore& store_of(const Chunk& chunk) {
    return chunk.on_host ? *stores_.host : *stores_.device;
  }
  // Where the updated parameters of a chunk go.
  TensorView param_of(const Bucket& bucket, const Chunk& chunk) const;
  // Master and states, where a chunk without a master of its own has its parameters.
  std::vector<TensorView> with_master(const Bucket& bucket, const Chunk& chunk,
                                      std::vector<TensorView> views) const;
  // The part of the `index`th view of a chunk that belongs to elements [begin, begin + numel) of
  // it.
  TensorView part_of(const Bucket& bucket, TensorView view, size_t index, int64_t begin,
                     int64_t numel) const;
  // What is known of a chunk: its parameters, and master and states unless it is frozen.
  struct ChunkViews {
    TensorView param;
    std::vector<TensorView> states;
  };
  StateInterval interval_of(const Bucket& bucket, const Chunk& chunk, const Interval& part,
                            const ChunkViews& views) const;
  // Visits what of the chunk this rank alone stands for.
  void visit_chunk(const Bucket& bucket, const Chunk& chunk, const ChunkViews& views,
                   const Engine::StateVisit& visit,
                   std::optional<ParameterId> only = std::nullopt) const;
  // Where initial values come from, and what they pass through.
  struct Fill {
    const Engine::FillFunction& source;
    std::span<float> host;
    TensorView staging;
  };
  // `views` are its master and states, if it has any.
  void fill(const Bucket& bucket, const Chunk& chunk, std::span<const TensorView> views,
            const Fill& fill);

  Work begin(const Bucket& bucket, const Chunk& chunk, Content content = Content::needed);
  // Sets where the chunk's new parameters are written (on CPU ranks, where they belong), and takes
  // them there.
  void open_param(Work& work);
  void close_param(Work& work);
  // The bucket's offloaded chunks that were closed so far have their new parameters.
  Event stepped(const Bucket& bucket);
  // The updated parameters, where there are any, and the states go to rest.
  void end(Work& work);
  UpdateTensors tensors_of(const Work& work) const;
  using Scalars = std::function<UpdateScalars(const Run&)>;
  // All runs of a chunk, by one call of the device.
  void update(const Work& work, const UpdateTensors& tensors, const Scalars& scalars) const;
  // One pass over the chunks that rest on the host, or over those that do not.
  void update(const Bucket& bucket, bool on_host, const Scalars& scalars);
  // One pass over all buckets, offloaded chunks beside the others; publishes.
  void update_all(const std::function<bool(const Bucket&)>& wanted,
                  const std::function<Scalars(const Bucket&)>& scalars_of, Stream& comm_stream,
                  const Publish& publish);

  // The next step's first chunks are read beside forward and backward.
  void expect_next_step();

  // zero/two_pass_step.cc
  void allocate_direction();
  // First pass over a chunk; its direction goes to `out`, in fp32.
  void find_direction(const Work& work, const Step& step, TensorView out);
  void lamb_step(const Step& step, Stream& comm_stream, const Publish& publish);
  void muon_step(const Bucket& bucket, const Step& step, Stream& comm_stream);
  void apply_direction(const Bucket& bucket, const Step& step, TensorView direction);

  const EngineContext& context_;
  const std::span<const Bucket> buckets_;
  BucketMemory& memory_;
  const std::vector<Optimizer> rules_;
  StateStores stores_;
  HostPipeline* const pipeline_;
  OffloadedParameters* const parameters_;
  std::vector<std::vector<std::vector<Run>>> runs_;  // by bucket and chunk
  // Of one bucket at a time, in fp32: Lamb's direction of a chunk, Muon's of the whole.
  Buffer direction_;
  Event direction_read_;  // the host has what it needs of Muon's
  std::shared_ptr<void> ledger_;
  Buffer work_;  // of orthogonalization
};

}  // namespace zerorun
