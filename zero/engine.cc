#include "zerorun/engine.h"

#include <algorithm>
#include <array>
#include <exception>
#include <optional>
#include <utility>

#include "core/check.h"
#include "core/log.h"
#include "optim/optimizer.h"
#include "zero/gradients/gradient_reducer.h"
#include "zero/gradients/micro_step.h"
#include "zero/gradients/step_control.h"
#include "zero/groups/engine_context.h"
#include "zero/groups/lanes.h"
#include "zero/memory_advice.h"
#include "zero/parameters/parameter_gatherer.h"
#include "zero/parameters/parameter_hash.h"
#include "zero/partition/model_spec.h"
#include "zero/storage/bucket_memory.h"
#include "zero/storage/offload.h"
#include "zero/timeline/stopwatch.h"
#include "zero/update/caller_step.h"
#include "zero/update/optimizer_states.h"
#include "zero/update/sharded_step.h"

namespace zerorun {

namespace {

class EngineImpl final : public Engine, private EngineStates, private EngineHooks {
 public:
  EngineImpl(const Config& config, Device& device, Communicator& comm,
             std::vector<ParameterSpec> specs, std::vector<ParameterGroup> groups,
             std::vector<Optimizer> rules, const EngineGroups& others)
      : model_(with_rules(std::move(specs), rules.size() > 1), groups.size()),
        groups_(std::move(groups)),
        context_(make_context(config, model_.specs(), rules.front(), device, comm, others)),
        lanes_(context_),
        buckets_(make_buckets(context_, model_.numels(), model_.modules())),
        offload_(make_offload(context_, buckets_, rules)),
        memory_(context_, buckets_,
                offload_ && offload_->gradients ? offload_->gradients->memory()
                                                : std::span<const TensorView>()),
        storage_(context_, memory_, rules,
                 {make_device_state_store(device, state_layouts(context_, rules, buckets_, false)),
                  offload_ ? std::move(offload_->states) : nullptr},
                 offload_ ? offload_->pipeline.get() : nullptr, moved_parameters()),
        step_(context_, buckets_, memory_, storage_, rules),
        control_(context_, config),
        reducer_(context_, buckets_, memory_, control_, comm_stream(), offload_.get()),
        gatherer_(context_, buckets_, memory_, model_.module_count(), gather_stream(),
                  moved_parameters()) {}

  EngineImpl(const EngineImpl&) = delete;
  EngineImpl& operator=(const EngineImpl&) = delete;

  ~EngineImpl() override {
    // Peers must not wait for collectives that an unwinding rank will never join.
    if (is_unwinding()) context_.job().abort("it stopped after an error");
    // Work on the streams uses the other members' memory.
    lanes_.end();
    end_work();
    if (offload_ && offload_->pipeline) offload_->pipeline->drain();
    if (moved_parameters() != nullptr) moved_parameters()->drain();
  }

  std::span<const ParameterSpec> parameters() const override { return model_.specs(); }
  ParameterId parameter_id(std::string_view name) const override { return model_.id(name); }
  ModuleId module_id(std::string_view name) const override { return model_.module_id(name); }
  int64_t numel(ParameterId id) const override {
    return model_.numels()[static_cast<size_t>(model_.owner(id))];
  }
  bool is_sharded(ParameterId id) const override {
    return is_here(id) && bucket_of(id).plan.shard_params;
  }
  DType param_dtype() const override { return context_.param_dtype; }
  Device& device() override { return context_.device; }

  void initialize_parameters(const FillFunction& fill) override;

  void gather(ModuleId module) override {
    const Stopwatch watch(timings_.gather_s);
    const auto& modules = model_.uses(module);
    size_t held = 0;
    try {
      const bool last = micro_step().is_last();
      for (; held < modules.size(); ++held) gatherer_.gather(modules[held], last);
    } catch (...) {
      while (held > 0) gatherer_.release(modules[--held]);
      throw;
    }
  }
  void release(ModuleId module) override {
    for (ModuleId used : model_.uses(module)) gatherer_.release(used);
  }
  TensorView parameter(ParameterId id) const override;
  void use_full_memory(FullMemory memory) override { gatherer_.use_memory(std::move(memory)); }
  std::optional<FullPlace> full_place(ParameterId id) const override {
    if (!is_sharded(id)) return std::nullopt;
    const Bucket& bucket = bucket_of(id);
    if (memory_.parameters(bucket).resident) return std::nullopt;
    return FullPlace{bucket.index, memory_.place_of(model_.owner(id)).offset,
                     bucket.layout.padded_numel()};
  }

  GradientView gradient(ParameterId id) override {
    const Stopwatch watch(timings_.reduce_s);
    return reducer_.gradient(model_.owner(id));
  }
  void grad_ready(ParameterId id) override {
    const Stopwatch watch(timings_.reduce_s);
    micro_step().complete(model_.owner(id));
    while (const std::optional<int> bucket = micro_step().take_ready()) reducer_.reduce(*bucket);
  }
  void contribute(std::span<const Contribution> gradients) override;
  GradientBucket gradient_bucket(ParameterId id) const override {
    const Bucket& bucket = bucket_of(id);
    return {bucket.index, static_cast<int>(bucket.plan.parameters.size())};
  }
  void reduce_gradients() override {
    const Stopwatch watch(timings_.reduce_s);
    reducer_.reduce_rest();
  }
  bool end_micro_step() override {
    if (!micro_step().is_reduced()) reduce_gradients();
    gatherer_.end_micro_step();
    return micro_step().end();
  }
  void drop_batch() override {
    const BatchState state = batch();
    if (state.phase == BatchPhase::idle && state.micro_steps == 0) return;
    if (state.phase == BatchPhase::open) reduce_gradients();
    reducer_.drop();
  }
  void set_batch_rule(const BatchRule& rule) override {
    micro_step().set_rule(rule);
    control_.average_over(rule.accumulation_steps);
  }
  BatchState batch() const override { return micro_step().state(); }
  double loss_scale() const override { return control_.decider().loss_scale(); }
  StepResult step() override;
  StepResult step(const ShardUpdate& update) override;
  void finish_updates() override { gatherer_.updates().wait(); }
  double gradient_average() const override { return control_.decider().average(); }
  TensorView whole_gradient(ParameterId id) override { return reducer_.whole(model_.owner(id)); }
  void accept_gradients() override { reducer_.measure(); }
  void reduce_late_gradients() override {
    const Stopwatch watch(timings_.reduce_s);
    reducer_.reduce_late_now();
  }
  EngineStates& states() override { return *this; }
  EngineHooks& hooks() override { return *this; }
  EngineProgress progress() const override {
    return {counts_.step_count, counts_.skipped_steps, control_.decider().scaler_state()};
  }
  void set_progress(const EngineProgress& progress) override {
    control_.load_scaler_state(progress.loss_scaler);  // throws for what no scaler has
    counts_ = progress;
  }
  std::span<ParameterGroup> groups() override { return groups_; }
  DType master_dtype() const override { return context_.master_dtype(); }
  std::span<const StateSpec> state_specs(ParameterId id) const override {
    const ParameterSpec& spec = model_.specs()[static_cast<size_t>(model_.owner(id))];
    return spec.trainable ? storage_.rule(spec).states() : std::span<const StateSpec>();
  }
  std::vector<StateInterval> state_intervals(std::optional<ParameterId> parameter) override;
  void visit_states(StateAccess access, const StateVisit& visit) override;
  void refresh_from_masters() override;
  void accept_changes() override;
  void offload_states() override;
  void reload_states() override { storage_.reload_states(); }
  uint64_t parameter_hash() override {
    gatherer_.updates().wait();
    return hash_parameters(context_, buckets_, memory_, moved_parameters());
  }

  int64_t model_state_bytes() const override {
    const auto live = [&](MemoryCategory of) { return context_.device.memory_use(of).live_bytes; };
    return live(MemoryCategory::parameters) + live(MemoryCategory::gradients) +
           live(MemoryCategory::optimizer);
  }
  EngineTimings take_timings() override { return timings_.take(); }
  Subscription observe(WorkObserver observer) override {
    return timings_.observers.add(std::move(observer));
  }

 private:
  void end_work() noexcept;
  // True while an exception ends this engine. Exceptions that were there before it do not.
  bool is_unwinding() const { return std::uncaught_exceptions() > exceptions_before_; }
  MicroStep& micro_step() { return reducer_.micro_step(); }
  const MicroStep& micro_step() const { return reducer_.micro_step(); }
  Stream& comm_stream() { return lanes_.reductions(); }
  // One-sided gathers need no order among the collectives, and those of resident buckets move
  // nothing.
  Stream& gather_stream() {
    const bool resident = std::any_of(buckets_.begin(), buckets_.end(), [&](const Bucket& bucket) {
      return memory_.parameters(bucket).resident;
    });
    return resident ? context_.device.inline_stream() : lanes_.gathers();
  }
  // False for what other ranks have: there is no bucket of it.
  bool is_here(ParameterId id) const {
    return model_.specs()[static_cast<size_t>(model_.owner(id))].ranks != kElsewhere;
  }
  const Bucket& bucket_of(ParameterId id) const {
    ZR_CHECK(is_here(id), "{} is on other ranks", model_.specs()[static_cast<size_t>(id)].name);
    return buckets_[static_cast<size_t>(memory_.place_of(model_.owner(id)).bucket)];
  }
  OptimizerStates stored_states() { return {context_, buckets_, memory_, storage_}; }
  // Null when shards are gathered from where they are stored.
  OffloadedParameters* moved_parameters() const {
    return offload_ ? offload_->parameters.get() : nullptr;
  }
  // Waits for the gradient and decides about it; `ahead` as in GradientReducer::finish.
  StepDecision decide(const GradientReducer::Ahead& ahead);
  void run_update(const StepScalars& step);
  void refresh();  // of all that is computed from masters
  void finish_step() {
    // Where it is not ahead, threads of the host may still write what the next step reads.
    const bool waits = offload_ && !runs_ahead();
    waits ? gatherer_.updates().finish(comm_stream()) : gatherer_.updates().end(comm_stream());
  }
  // On a GPU a step waits once, for the norm.
  bool runs_ahead() const { return !context_.device.is_host(); }

  const int exceptions_before_ = std::uncaught_exceptions();
  const ModelSpec model_;
  std::vector<ParameterGroup> groups_;
  const EngineContext context_;
  Lanes lanes_;
  const std::vector<Bucket> buckets_;
  const std::unique_ptr<Offload> offload_;  // null when nothing is offloaded
  BucketMemory memory_;
  ChunkStorage storage_;
  ShardedStep step_;
  StepControl control_;
  GradientReducer reducer_;
  ParameterGatherer gatherer_;
  Timers timings_;
  EngineProgress counts_;  // of steps
};

TensorView EngineImpl::parameter(ParameterId id) const {
  const Bucket& bucket = bucket_of(id);
  gatherer_.updates().wait(bucket);
  const TensorView full = memory_.parameters(bucket).full;
  ZR_CHECK(full.data != nullptr, "{} is read outside gather and release of module {}",
           model_.specs()[static_cast<size_t>(id)].name,
           model_.specs()[static_cast<size_t>(model_.owner(id))].module);
  const BucketMemory::Place& place = memory_.place_of(model_.owner(id));
  return full.slice(place.offset, place.numel);
}

void EngineImpl::initialize_parameters(const FillFunction& fill) {
  gatherer_.invalidate();
  stored_states().initialize(fill, [&](const Bucket& bucket) {
    if (context_.policy.shard_state) gatherer_.updates().gather(bucket, comm_stream());
  });
  gatherer_.updates().finish(comm_stream());
}

void EngineImpl::contribute(std::span<const Contribution> gradients) {
  const Stopwatch watch(timings_.reduce_s);
  std::vector<Contribution> owned(gradients.begin(), gradients.end());
  for (auto& [id, gradient] : owned) {
    if (gradient.numel != numel(id)) {
      fail<ConfigError>("gradient of {}: got {} elements, expected {}",
                        model_.specs()[static_cast<size_t>(id)].name, gradient.numel, numel(id));
    }
    id = model_.owner(id);
  }
  reducer_.add(owned);
  for (const Contribution& one : owned) micro_step().receive(one.parameter);
  while (const std::optional<int> bucket = micro_step().take_ready()) reducer_.reduce(*bucket);
}

StepDecision EngineImpl::decide(const GradientReducer::Ahead& ahead) {
  ZR_CHECK(micro_step().phase() == BatchPhase::step_due && micro_step().is_last(),
           "step() before end_micro_step() returned true");
  if (!runs_ahead()) {
    const Stopwatch watch(timings_.reduce_s);
    reducer_.wait();
  }
  // Gathers that still run read what the step will write; the collective below waits for all ranks.
  gatherer_.invalidate();
  comm_stream().wait(gatherer_.gathered());
  const Stopwatch watch(timings_.optimizer_s);
  const GradientNorm::Result sum = reducer_.finish(gatherer_.order_hash(), ahead);
  if (runs_ahead()) reducer_.trim();
  if (!sum.same_gathers) {
    fail<CommError>(
        "the ranks used different modules since the last step, or in another order, and gathered "
        "each other's: at stage 3 on GPUs name the module around them in leaf_module (or stage 2)");
  }
  const StepDecision decision = control_.decide(sum, comm_stream());
  const StepResult& result = decision.result;
  if (result.had_gradient) ++(result.applied ? counts_.step_count : counts_.skipped_steps);
  context_.device.trim_unused();  // the host has just waited for all of the step's work
  return decision;
}

void EngineImpl::run_update(const StepScalars& step) {
  step_.run(step, comm_stream(), [&](const Bucket& bucket) {
    if (context_.policy.shard_state) gatherer_.updates().gather(bucket, comm_stream());
  });
  finish_step();
}

StepResult EngineImpl::step() {
  if (runs_ahead()) {
    const auto ahead = [&](TensorView decision) {
      context_.device.inline_stream().wait(comm_stream().record());
      run_update({counts_.step_count + 1, 1.0F, groups_, decision});
    };
    return decide(ahead).result;
  }
  const StepDecision decision = decide({});
  if (!decision.result.applied) return decision.result;
  const Stopwatch watch(timings_.optimizer_s);
  run_update({counts_.step_count, decision.grad_scale, groups_});
  return decision.result;
}

StepResult EngineImpl::step(const ShardUpdate& update) {
  const StepDecision decision = decide({});
  if (!decision.result.applied) return decision.result;
  const Stopwatch watch(timings_.optimizer_s);
  try {
    step_by_caller(context_, comm_stream(), stored_states(), decision.grad_scale, update);
  } catch (...) {
    --counts_.step_count;
    throw;
  }
  refresh();
  finish_step();
  return decision.result;
}

// A GPU's last error may still be under way; nothing but this tells whoever reads wrong results.
void EngineImpl::end_work() noexcept {
  try {
    context_.device.inline_stream().synchronize();
  } catch (const std::exception& error) {
    if (is_unwinding()) return;
    Logger(context_.rank, context_.world_size)
        .log(LogLevel::error, "{}; what was computed since then is wrong", error.what());
  }
}

std::vector<StateInterval> EngineImpl::state_intervals(std::optional<ParameterId> parameter) {
  gatherer_.updates().wait();
  reducer_.wait();
  if (parameter) parameter = model_.owner(*parameter);
  return stored_states().intervals(OptimizerStates::Parts::all, parameter);
}

void EngineImpl::visit_states(StateAccess access, const StateVisit& visit) {
  reducer_.wait();
  if (access == StateAccess::write) gatherer_.invalidate();  // gathers ahead read what is written
  stored_states().visit(access, visit);
}

void EngineImpl::accept_changes() {
  gatherer_.invalidate();
  storage_.accept_changes();
  gatherer_.updates().finish(comm_stream());
}

void EngineImpl::offload_states() {
  gatherer_.updates().wait();
  reducer_.wait();
  storage_.offload_states();
  context_.device.release_kept();  // for whoever needs the memory
}

void EngineImpl::refresh() {
  gatherer_.invalidate();
  stored_states().refresh_from_masters(comm_stream(), [&](const Bucket& bucket) {
    gatherer_.updates().gather(bucket, comm_stream());
  });
}

void EngineImpl::refresh_from_masters() {
  refresh();
  gatherer_.updates().finish(comm_stream());
}

}  // namespace

void Engine::contribute(ParameterId id, TensorView gradient) {
  hooks().contribute(std::array{Contribution{id, gradient}});
}

std::unique_ptr<Engine> Engine::create(const Config& config, Device& device, Communicator& comm,
                                       std::vector<ParameterSpec> specs,
                                       std::vector<ParameterGroup> groups,
                                       const EngineGroups& others) {
  device.use_memory_adviser(memory_adviser(memory_settings(config)));
  return std::make_unique<EngineImpl>(config, device, comm, std::move(specs), std::move(groups),
                                      make_optimizers(config.optimizer, config.precision), others);
}

}  // namespace zerorun
