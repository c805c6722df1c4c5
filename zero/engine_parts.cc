#include "zero/engine_parts.h"

#include <algorithm>
#include <utility>

#include "comm/agreement.h"
#include "offload/pinned_arena.h"
#include "optim/optimizer.h"
#include "zero/memory_plan.h"

namespace zerorun {

namespace {

// Masters and states of chunks on the device and on the host.
std::unique_ptr<ChunkStorage> make_storage(const EngineParts& parts,
                                           std::span<const Optimizer> rules) {
  const EngineContext& context = *parts.context;
  const auto layouts = state_layouts(context.sharding, rules, *parts.buckets, false);
  StateStores stores{make_device_state_store(context.device, layouts), nullptr};
  HostPipeline* pipeline = nullptr;
  if (parts.offload) {
    stores.host = std::move(parts.offload->states);
    pipeline = parts.offload->pipeline.get();
  }
  return std::make_unique<ChunkStorage>(context, std::vector(rules.begin(), rules.end()),
                                        std::move(stores), pipeline, parts.moved_parameters());
}

// One-sided gathers need no order among the collectives, and those of resident buckets move
// nothing.
Stream& gather_stream(const EngineParts& parts) {
  const bool resident = std::any_of(parts.buckets->begin(), parts.buckets->end(),
                                    [](const Bucket& bucket) { return bucket.params.resident; });
  return resident ? parts.context->device.inline_stream() : parts.lanes->gathers();
}

// The divisor of a sum over ranks, after Precision::pre_scale, for their average.
double divisor_of(const EngineContext& context, const Config& config) {
  const double ranks = config.precision.gradient_reduction == GradientReduction::mean
                           ? context.groups.comm.world_size()
                           : 1;
  return ranks * context.sharding.precision.pre_scale;
}

// Memory of a host is taken when it is first written, where a lack of it ends the process: all
// ranks look before any takes it, as one that looked later would miss what another has taken. CPU
// ranks move values to where parameters, masters and what is offloaded will be; all other memory is
// taken before.
void check_room(const EngineContext& context, std::span<const Optimizer> rules,
                std::span<const Bucket> buckets, int64_t moved_nbytes) {
  const Sharding& sharding = context.sharding;
  const bool on_host = context.device.is_host();
  if (!on_host && !sharding.offloads_states() && !sharding.moves_parameters()) return;
  const MemoryPlan plan = plan_states(sharding, rules, buckets);
  const int64_t written_then = plan.parameters + plan.masters + plan.pinned;
  int64_t nbytes = plan.pinned;
  if (on_host) nbytes += plan.device() - std::min(moved_nbytes, written_then);
  Communicator& job = context.groups.job();
  const int ranks = job.local_world_size();
  Agreement agreement(job, context.device.inline_stream());
  // Ranks of one host may need different amounts, such as the parts of a pipeline.
  if (job.world_size() == ranks) nbytes = agreement.reduce(nbytes, ReduceOp::sum) / ranks;
  const HostLimits limits = host_limits();
  agreement.run("room for the engine", [&] {
    check_host_memory(limits, static_cast<size_t>(nbytes), ranks,
                      on_host ? "the engine" : "offloading");
  });
}

}  // namespace

Lanes::Lanes(const EngineContext& context) : inline_(context.device.inline_stream()) {
  if (!*context.sharding.zero.overlap_comm) return;
  reductions_ = context.device.make_stream("zerorun-comm");
  if (&context.groups.gathers() != &context.groups.shards()) {
    gathers_ = context.device.make_stream("zerorun-gather");
  }
}

void Lanes::end() {
  gathers_.reset();
  reductions_.reset();
}

EngineParts make_engine_parts(const Config& config, Device& device, Communicator& comm,
                              std::vector<ParameterSpec> specs, size_t groups,
                              const EngineGroups& others) {
  const std::vector<Optimizer> rules = make_optimizers(config.optimizer, config.precision);
  EngineParts parts;
  // What is trained, by which ranks.
  parts.model = std::make_unique<ModelSpec>(
      with_rules(std::move(specs), config.optimizer, rules.size() > 1), groups);
  const ModelSpec& model = *parts.model;
  parts.context = std::make_unique<EngineContext>(
      make_context(config, model.specs(), rules.front(), device, comm, others));
  const EngineContext& context = *parts.context;
  if (rules.size() > 1) check_muon(config.optimizer, context);
  parts.lanes = std::make_unique<Lanes>(context);
  // Buckets and their memory.
  parts.buckets = std::make_unique<Buckets>(
      make_buckets(context.sharding, model.numels(), model.modules()), model.numels().size());
  Buckets& buckets = *parts.buckets;
  check_room(context, rules, buckets, others.moved_nbytes);
  parts.offload = make_offload(context, buckets, rules);
  parts.memory = std::make_unique<BucketMemory>(context, buckets);
  // Optimizer states, and the step.
  parts.storage = make_storage(parts, rules);
  parts.step = std::make_unique<ShardedStep>(context, buckets, *parts.storage, rules);
  // Reductions of gradients, and gathers of parameters.
  parts.decider = std::make_unique<StepDecider>(config, divisor_of(context, config));
  parts.decider->average_over(context.sharding.accumulation_steps);
  parts.reducer = std::make_unique<GradientReducer>(context, buckets, *parts.decider,
                                                    parts.lanes->reductions(), parts.offload.get());
  parts.gatherer = std::make_unique<ParameterGatherer>(
      context, buckets, model.module_count(), gather_stream(parts), parts.moved_parameters());
  parts.stragglers = std::make_unique<StragglerWatch>(context.groups.job(), device);
  return parts;
}

}  // namespace zerorun
