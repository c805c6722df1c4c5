#include "zerorun/engine.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <utility>

#include "core/check.h"
#include "offload/state_store.h"
#include "optim/optimizer.h"
#include "zero/bucket.h"
#include "zero/gradient_reducer.h"
#include "zero/model_spec.h"
#include "zero/parameter_gatherer.h"
#include "zero/parameter_hash.h"
#include "zero/sharded_optimizer.h"
#include "zero/step_control.h"

namespace zerorun {

namespace {

// Adds the time until its destruction to a counter.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() {
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// The fp32 shards of an outside optimizer are its parameters, and their gradients fp32 as well.
void choose_gradient_dtypes(const Config& config, EngineContext& context) {
  const DType param = config.precision.param_dtype;
  context.comm_dtype = config.precision.communication_dtype.value_or(param);
  const bool sums = context.accumulation_steps > 1 && !config.precision.master_is_param;
  const bool wide = sums || config.optimizer.type == kExternalOptimizer;
  context.accum_dtype =
      config.precision.grad_accum_dtype.value_or(wide ? DType::fp32 : context.comm_dtype);
  if (context.accum_dtype != DType::fp32 && context.accum_dtype != context.comm_dtype) {
    fail<ConfigError>(
        "/data_types/grad_accum_dtype is {}, but gradients are reduced in {} "
        "(/communication_data_type, or the parameters' dtype): expected fp32 or that dtype",
        name_of(context.accum_dtype), name_of(context.comm_dtype));
  }
}

// As DeepSpeed 0.19 (deepspeed/runtime/zero/stage_1_and_2.py): prescaling divides by the world size
// before the sum, else a part of that division may be done before it.
double pre_scale(const PrecisionConfig& precision, int world_size) {
  if (precision.gradient_reduction == GradientReduction::sum) return 1.0;
  return 1.0 / (precision.prescale_gradients ? world_size : precision.gradient_predivide_factor);
}

// Without Muon, matrices are parameters like all others.
std::vector<ParameterSpec> with_rules(std::vector<ParameterSpec> specs, bool has_muon) {
  for (ParameterSpec& spec : specs) spec.use_muon = spec.use_muon && has_muon;
  return specs;
}

EngineContext make_context(const Config& config, Device& device, Communicator& comm,
                           const ModelSpec& model, const Optimizer& rule) {
  EngineContext context{device, comm, model.specs(), stage_policy(config.zero.stage), config.zero};
  context.param_dtype = config.precision.param_dtype;
  context.accumulation_steps = std::max<int64_t>(1, config.batch.accumulation_steps);
  context.pre_scale = pre_scale(config.precision, comm.world_size());
  choose_gradient_dtypes(config, context);
  context.share_parameters = config.share_parameters;
  context.parameter_alignment = rule.alignment();
  // Without a stream of its own, gathering ahead only moves the wait.
  if (!config.zero.overlap_comm) context.zero.prefetch_bucket_size = 0;
  return context;
}

class EngineImpl final : public Engine {
 public:
  EngineImpl(const Config& config, Device& device, Communicator& comm,
             std::vector<ParameterSpec> specs, std::vector<ParameterGroup> groups,
             std::vector<Optimizer> rules)
      : model_(with_rules(std::move(specs), rules.size() > 1), groups.size()),
        groups_(std::move(groups)),
        context_(make_context(config, device, comm, model_, rules.front())),
        comm_stream_(config.zero.overlap_comm ? device.make_stream("zerorun-comm") : nullptr),
        buckets_(make_buckets(context_, model_.numels(), model_.modules())),
        memory_(context_, buckets_),
        optimizer_(context_, buckets_, std::move(rules), config.precision,
                   make_device_state_store(device)),
        control_(context_, config),
        reducer_(context_, buckets_, control_.inspector(), control_.norm(), comm_stream()),
        gatherer_(context_, buckets_, model_.module_count(), gather_stream()) {
    for (const Bucket& bucket : buckets_) {
      for (const Placement& placement : bucket.layout.placements) {
        const auto id = static_cast<size_t>(placement.parameter);
        homes_.resize(std::max(homes_.size(), id + 1));
        homes_[id] = {bucket.index, placement};
      }
    }
  }

  EngineImpl(const EngineImpl&) = delete;
  EngineImpl& operator=(const EngineImpl&) = delete;

  ~EngineImpl() override {
    // Peers must not wait for collectives that an unwinding rank will never join.
    if (std::uncaught_exceptions() > 0) context_.comm.abort("it stopped after an error");
    // Work on the stream uses the other members' memory.
    comm_stream_.reset();
  }

  std::span<const ParameterSpec> parameters() const override { return model_.specs(); }
  ParameterId parameter_id(std::string_view name) const override { return model_.id(name); }
  ModuleId module_id(std::string_view name) const override { return model_.module_id(name); }
  int64_t numel(ParameterId id) const override {
    return model_.numels()[static_cast<size_t>(model_.owner(id))];
  }
  bool is_sharded(ParameterId id) const override {
    const int bucket = homes_.at(static_cast<size_t>(model_.owner(id))).bucket;
    return buckets_[static_cast<size_t>(bucket)].plan.shard_params;
  }
  DType param_dtype() const override { return context_.param_dtype; }
  Device& device() override { return context_.device; }

  void initialize_parameters(const FillFunction& fill) override;

  void gather(ModuleId module) override {
    const Stopwatch watch(timings_.gather_s);
    for (ModuleId used : model_.uses(module)) gatherer_.gather(used);
  }
  void release(ModuleId module) override {
    for (ModuleId used : model_.uses(module)) gatherer_.release(used);
  }
  TensorView parameter(ParameterId id) const override;

  GradientView gradient(ParameterId id) override {
    const Stopwatch watch(timings_.reduce_s);
    return reducer_.gradient(model_.owner(id));
  }
  void grad_ready(ParameterId id) override {
    const Stopwatch watch(timings_.reduce_s);
    reducer_.ready(model_.owner(id));
  }
  bool end_micro_step() override {
    const Stopwatch watch(timings_.reduce_s);
    step_due_ = reducer_.end_micro_step();
    return step_due_;
  }
  void extend_batch() override {
    ZR_CHECK(std::exchange(step_due_, false), "extend_batch() before end_micro_step() was true");
    reducer_.extend_batch();
  }
  void set_accumulation_boundary(std::optional<bool> boundary) override {
    reducer_.set_boundary(boundary);
  }
  double loss_scale() const override { return control_.loss_scale(); }
  StepResult step() override;
  StepResult step(const ShardUpdate& update) override;
  double gradient_average() const override { return control_.average(); }

  EngineProgress progress() const override {
    return {step_count_, skipped_steps_, control_.scaler_state()};
  }
  void set_progress(const EngineProgress& progress) override {
    step_count_ = progress.step_count;
    skipped_steps_ = progress.skipped_steps;
    control_.load_scaler_state(progress.loss_scaler);
  }
  std::span<ParameterGroup> groups() override { return groups_; }
  DType master_dtype() const override { return optimizer_.master_dtype(); }
  std::span<const StateSpec> state_specs(ParameterId id) const override {
    const Home& home = homes_.at(static_cast<size_t>(model_.owner(id)));
    return optimizer_.state_specs(buckets_[static_cast<size_t>(home.bucket)]);
  }
  std::vector<StateInterval> state_intervals() override;
  void publish_masters() override;
  uint64_t parameter_hash() override { return hash_parameters(context_, buckets_); }

  int64_t model_state_bytes() const override {
    int64_t total = 0;
    for (const MemoryCategory category :
         {MemoryCategory::parameters, MemoryCategory::gradients, MemoryCategory::optimizer}) {
      total += context_.device.memory_use(category).live_bytes;
    }
    return total;
  }
  EngineTimings take_timings() override { return std::exchange(timings_, {}); }

 private:
  struct Home {
    int bucket = 0;
    Placement placement;
  };

  Stream& comm_stream() { return comm_stream_ ? *comm_stream_ : context_.device.inline_stream(); }
  // One-sided gathers need no order among the collectives, and those of resident buckets move
  // nothing.
  Stream& gather_stream() {
    const bool resident = std::any_of(buckets_.begin(), buckets_.end(),
                                      [](const Bucket& bucket) { return bucket.resident; });
    return resident ? context_.device.inline_stream() : comm_stream();
  }
  // Waits for the gradient and decides about it.
  StepControl::Decision decide();
  // Makes what this rank wrote to its shards visible to all.
  void publish(const Bucket& bucket);
  void finish_publishing();

  const ModelSpec model_;
  std::vector<ParameterGroup> groups_;
  const EngineContext context_;
  std::unique_ptr<Stream> comm_stream_;
  std::vector<Bucket> buckets_;
  BucketMemory memory_;
  ShardedOptimizer optimizer_;
  StepControl control_;
  GradientReducer reducer_;
  ParameterGatherer gatherer_;
  std::vector<Home> homes_;  // by owning parameter
  EngineTimings timings_;
  int64_t step_count_ = 0;
  int64_t skipped_steps_ = 0;
  bool step_due_ = false;
};

TensorView EngineImpl::parameter(ParameterId id) const {
  const Home& home = homes_.at(static_cast<size_t>(model_.owner(id)));
  const Bucket& bucket = buckets_[static_cast<size_t>(home.bucket)];
  ZR_CHECK(bucket.param_full.data != nullptr, "{} is read outside gather and release of module {}",
           model_.specs()[static_cast<size_t>(id)].name,
           model_.specs()[static_cast<size_t>(model_.owner(id))].module);
  return bucket.param_full.slice(home.placement.offset, home.placement.numel);
}

void EngineImpl::publish(const Bucket& bucket) {
  if (bucket.plan.shard_params) return;  // peers read shards where they lie
  Stream& stream = comm_stream();
  stream.wait(context_.device.inline_stream().record());
  context_.comm.all_gather(bucket.param_shard, bucket.param_full, Sync::collective, stream,
                           bucket.label);
}

void EngineImpl::finish_publishing() {
  const bool any_sharded = std::any_of(buckets_.begin(), buckets_.end(), [](const Bucket& bucket) {
    return bucket.plan.shard_params;
  });
  if (any_sharded) {
    comm_stream().wait(context_.device.inline_stream().record());
    context_.comm.barrier(comm_stream(), "parameters published");
  }
  comm_stream().synchronize();
}

void EngineImpl::initialize_parameters(const FillFunction& fill) {
  constexpr int64_t kBlock = 1 << 18;
  std::vector<float> host(kBlock);
  Device& device = context_.device;
  Stream& stream = device.inline_stream();
  const Buffer staging = device.allocate(kBlock * sizeof(float), MemoryCategory::other);
  gatherer_.invalidate();
  for (const Bucket& bucket : buckets_) {
    const int64_t from = optimizer_.held_from(bucket);
    const std::vector<TensorView> states =
        bucket.plan.trainable ? optimizer_.acquire(bucket, stream) : std::vector<TensorView>{};
    const TensorView param = context_.policy.shard_state ? bucket.param_shard : bucket.param_full;
    for (const Interval& part :
         bucket.layout.intervals(from, from + optimizer_.held_numel(bucket))) {
      for (int64_t at = 0; at < part.numel; at += kBlock) {
        const int64_t count = std::min(kBlock, part.numel - at);
        fill(part.parameter, part.begin + at, {host.data(), static_cast<size_t>(count)});
        const TensorView block = view_of(staging, DType::fp32, count);
        device.upload(stream, host.data(), block);
        const int64_t offset = part.offset - from + at;
        if (!states.empty()) device.cast(stream, block, states[0].slice(offset, count));
        device.cast(stream, block, param.slice(offset, count));
        stream.synchronize();
      }
    }
    if (bucket.plan.trainable) optimizer_.release(bucket, stream);
    if (context_.policy.shard_state) publish(bucket);
  }
  finish_publishing();
}

StepControl::Decision EngineImpl::decide() {
  ZR_CHECK(step_due_, "step() before end_micro_step() returned true");
  step_due_ = false;
  {
    const Stopwatch watch(timings_.reduce_s);
    reducer_.wait();
  }
  // Gathers that still run read what the step will write; the collective below waits for all ranks.
  gatherer_.invalidate();
  const Stopwatch watch(timings_.optimizer_s);
  const StepControl::Decision decision = control_.decide(comm_stream());
  ++(decision.result.applied ? step_count_ : skipped_steps_);
  return decision;
}

StepResult EngineImpl::step() {
  const StepControl::Decision decision = decide();
  if (!decision.result.applied) return decision.result;
  const Stopwatch watch(timings_.optimizer_s);
  optimizer_.step(step_count_, decision.grad_scale, groups_, comm_stream(),
                  [&](const Bucket& bucket) {
                    if (context_.policy.shard_state) publish(bucket);
                  });
  finish_publishing();
  return decision.result;
}

StepResult EngineImpl::step(const ShardUpdate& update) {
  const StepControl::Decision decision = decide();
  if (!decision.result.applied) return decision.result;
  const Stopwatch watch(timings_.optimizer_s);
  std::vector<StateInterval> intervals = state_intervals();
  std::erase_if(intervals, [](const StateInterval& part) { return part.grad.data == nullptr; });
  Stream& stream = context_.device.inline_stream();
  for (const StateInterval& part : intervals) {
    context_.device.scale(stream, part.grad, decision.grad_scale);
  }
  stream.synchronize();
  update(intervals);
  publish_masters();
  return decision.result;
}

std::vector<StateInterval> EngineImpl::state_intervals() {
  reducer_.wait();
  std::vector<StateInterval> result;
  Stream& stream = context_.device.inline_stream();
  const int rank = context_.comm.rank();
  for (const Bucket& bucket : buckets_) {
    const std::vector<TensorView> states =
        bucket.plan.trainable ? optimizer_.acquire(bucket, stream) : std::vector<TensorView>{};
    for (const Interval& part : bucket.layout.shard_intervals(rank)) {
      StateInterval interval{.parameter = part.parameter, .begin = part.begin, .numel = part.numel};
      const int64_t in_shard = part.offset - rank * bucket.layout.shard_numel;
      interval.param = bucket.param_shard.slice(in_shard, part.numel);
      const int64_t in_held = part.offset - optimizer_.held_from(bucket);
      if (bucket.plan.trainable) interval.grad = bucket.reduced.slice(in_held, part.numel);
      for (size_t i = 0; i < states.size(); ++i) {
        const TensorView view = optimizer_.part_of(bucket, states[i], i, in_held, part.numel);
        if (i == 0) {
          interval.master = view;
        } else {
          interval.states.push_back(view);
        }
      }
      result.push_back(std::move(interval));
    }
    if (bucket.plan.trainable) optimizer_.release(bucket, stream);
  }
  std::sort(result.begin(), result.end(), [](const StateInterval& a, const StateInterval& b) {
    return std::pair(a.parameter, a.begin) < std::pair(b.parameter, b.begin);
  });
  return result;
}

void EngineImpl::publish_masters() {
  Stream& stream = context_.device.inline_stream();
  gatherer_.invalidate();
  for (const Bucket& bucket : buckets_) {
    if (bucket.plan.trainable) {
      const std::vector<TensorView> states = optimizer_.acquire(bucket, stream);
      const int64_t own = context_.comm.rank() * bucket.layout.shard_numel;
      for (size_t i = 0; i < states.size() && !context_.policy.shard_state; ++i) {
        const TensorView part =
            optimizer_.part_of(bucket, states[i], i, own, bucket.layout.shard_numel);
        context_.comm.all_gather(part, states[i], Sync::collective, stream, bucket.label)
            .synchronize();
      }
      const int64_t in_held = own - optimizer_.held_from(bucket);
      const TensorView master = states[0].slice(in_held, bucket.layout.shard_numel);
      if (master.data != bucket.param_shard.data) {
        context_.device.cast(stream, master, bucket.param_shard);
      }
      optimizer_.release(bucket, stream);
    }
    publish(bucket);
  }
  finish_publishing();
}

}  // namespace

std::unique_ptr<Engine> Engine::create(const Config& config, Device& device, Communicator& comm,
                                       std::vector<ParameterSpec> specs,
                                       std::vector<ParameterGroup> groups) {
  return std::make_unique<EngineImpl>(config, device, comm, std::move(specs), std::move(groups),
                                      make_optimizers(config.optimizer, config.precision));
}

}  // namespace zerorun
