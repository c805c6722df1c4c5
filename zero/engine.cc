#include "zerorun/engine.h"

#include <exception>
#include <limits>
#include <utility>

#include "core/check.h"
#include "zero/engine_parts.h"
#include "zero/memory_plan.h"
#include "zero/timeline/span_log.h"
#include "zero/update/optimizer_states.h"

namespace zerorun {

namespace {

class EngineImpl final : public Engine, private EngineStates, private EngineHooks {
 public:
  EngineImpl(EngineParts parts, std::vector<ParameterGroup> groups)
      : parts_(std::move(parts)), groups_(std::move(groups)) {}

  ~EngineImpl() override {
    // Peers must not wait for collectives that an unwinding rank will never join.
    if (is_unwinding()) parts_.context->groups.job().abort("it stopped after an error");
    // Work on the streams uses the other members' memory.
    parts_.lanes->end();
    end_work();
    if (parts_.offload && parts_.offload->pipeline) parts_.offload->pipeline->drain();
    if (parts_.moved_parameters() != nullptr) parts_.moved_parameters()->drain();
  }

  std::span<const ParameterSpec> parameters() const override { return parts_.model->specs(); }
  ParameterId parameter_id(std::string_view name) const override { return parts_.model->id(name); }
  ModuleId module_id(std::string_view name) const override { return parts_.model->module_id(name); }
  int64_t numel(ParameterId id) const override {
    return parts_.model->numels()[static_cast<size_t>(parts_.model->owner(id))];
  }
  bool is_sharded(ParameterId id) const override {
    return is_here(id) && bucket_of(id).plan.shard_params;
  }
  DType param_dtype() const override { return parts_.context->sharding.precision.param_dtype; }
  Device& device() override { return parts_.context->device; }

  void initialize_parameters(const FillFunction& fill) override;

  void gather(ModuleId module) override {
    const Stopwatch watch(timings_.gather_s);
    const auto& modules = parts_.model->uses(module);
    size_t held = 0;
    try {
      const bool last = parts_.reducer->batch().is_last();
      for (; held < modules.size(); ++held) parts_.gatherer->gather(modules[held], last);
    } catch (...) {
      while (held > 0) parts_.gatherer->release(modules[--held]);
      throw;
    }
  }
  void release(ModuleId module) override {
    for (ModuleId used : parts_.model->uses(module)) parts_.gatherer->release(used);
  }
  TensorView parameter(ParameterId id) const override;
  void use_full_memory(FullMemory memory) override {
    parts_.gatherer->use_memory(std::move(memory));
  }
  std::optional<FullPlace> full_place(ParameterId id) const override {
    if (!is_sharded(id)) return std::nullopt;
    const Bucket& bucket = bucket_of(id);
    if (bucket.params.resident) return std::nullopt;
    return FullPlace{bucket.index, parts_.buckets->place_of(parts_.model->owner(id)).offset,
                     bucket.layout.padded_numel()};
  }

  GradientView gradient(ParameterId id) override {
    const Stopwatch watch(timings_.reduce_s);
    return parts_.reducer->gradient(parts_.model->owner(id));
  }
  void grad_ready(ParameterId id) override {
    const Stopwatch watch(timings_.reduce_s);
    parts_.reducer->batch().complete(parts_.model->owner(id));
    while (Bucket* const bucket = parts_.reducer->batch().pop_ready())
      parts_.reducer->reduce(*bucket);
  }
  void contribute(std::span<const Contribution> gradients) override;
  GradientBucket gradient_bucket(ParameterId id) const override {
    const Bucket& bucket = bucket_of(id);
    return {bucket.index, static_cast<int>(bucket.plan.parameters.size())};
  }
  void reduce_gradients() override {
    const Stopwatch watch(timings_.reduce_s);
    parts_.reducer->reduce_rest();
  }
  bool end_micro_step() override {
    if (!parts_.reducer->batch().is_reduced()) reduce_gradients();
    parts_.gatherer->end_micro_step();
    return parts_.reducer->batch().end();
  }
  void drop_batch() override {
    const BatchState state = batch();
    if (state.phase == BatchPhase::idle && state.micro_steps == 0) return;
    if (state.phase == BatchPhase::open) reduce_gradients();
    parts_.reducer->drop();
  }
  void set_batch_rule(const BatchRule& rule) override {
    parts_.reducer->batch().set_rule(rule);
    parts_.decider->average_over(rule.accumulation_steps);
  }
  BatchState batch() const override { return parts_.reducer->batch().state(); }
  double loss_scale() const override { return parts_.decider->loss_scale(); }
  StepResult step() override;
  StepResult step(const ShardUpdate& update) override;
  void finish_updates() override { updates().wait(); }
  double gradient_average() const override { return parts_.decider->average(); }
  TensorView whole_gradient(ParameterId id) override {
    return parts_.reducer->whole(parts_.model->owner(id));
  }
  Buffer decoded_part(ParameterId id) override {
    return updates().decoded_part(bucket_of(id), parts_.model->owner(id));
  }
  void accept_gradients() override { parts_.reducer->measure(); }
  void reduce_late_gradients() override {
    const Stopwatch watch(timings_.reduce_s);
    parts_.reducer->reduce_late_now();
  }
  EngineStates& states() override { return *this; }
  EngineHooks& hooks() override { return *this; }
  EngineProgress progress() const override {
    return {counts_.step_count, counts_.skipped_steps, parts_.decider->scaler_state()};
  }
  void set_progress(const EngineProgress& progress) override {
    parts_.decider->load_scaler_state(progress.loss_scaler);  // throws for what no scaler has
    counts_ = progress;
  }
  std::span<ParameterGroup> groups() override { return groups_; }
  DType master_dtype() const override { return parts_.context->sharding.precision.master_dtype(); }
  std::span<const StateSpec> state_specs(ParameterId id) const override {
    const ParameterSpec& spec = parts_.model->spec(parts_.model->owner(id));
    return spec.trainable ? parts_.storage->rule(spec).states() : std::span<const StateSpec>();
  }
  std::vector<StateInterval> state_intervals(std::optional<ParameterId> parameter) override;
  void visit_states(StateAccess access, const StateVisit& visit) override;
  void refresh_from_masters() override;
  void accept_changes() override;
  void offload_states() override;
  void reload_states() override { parts_.storage->reload_states(); }
  uint64_t parameter_hash() override {
    updates().wait();
    return stored_states().hash_parameters();
  }

  int64_t model_state_bytes() const override {
    const auto live = [&](auto of) { return parts_.context->device.memory_use(of).live_bytes; };
    return live(MemoryCategory::parameters) + live(MemoryCategory::gradients) +
           live(MemoryCategory::optimizer);
  }
  EngineTimings take_timings() override { return timings_.take(); }
  StepPart enter(StepPart part) override { return parts_.stragglers->clock().enter(part); }
  StragglerReport stragglers() const override { return parts_.stragglers->report(); }
  Subscription observe(WorkObserver observer) override {
    return timings_.observers.add(std::move(observer));
  }

 private:
  void end_work() noexcept;
  // True while an exception ends this engine. Exceptions that were there before it do not.
  bool is_unwinding() const { return std::uncaught_exceptions() > exceptions_before_; }
  Stream& comm_stream() { return parts_.lanes->reductions(); }
  UpdatedParameters& updates() const { return parts_.gatherer->updates(); }
  // False for what other ranks have: there is no bucket of it.
  bool is_here(ParameterId id) const {
    return parts_.model->spec(parts_.model->owner(id)).ranks != kElsewhere;
  }
  const Bucket& bucket_of(ParameterId id) const {
    ZR_CHECK(is_here(id), "{} is on other ranks", parts_.model->spec(id).name);
    return parts_.buckets->of(parts_.model->owner(id));
  }
  OptimizerStates stored_states() { return {*parts_.context, *parts_.buckets, *parts_.storage}; }
  // Waits for the gradient and decides about it; `submit_update` as in GradientReducer::finish.
  struct Decided {
    StepResult result;
    float grad_scale = 0.0F;  // factor of the reduced gradient
  };
  Decided decide(const GradientReducer::SubmitUpdate& submit_update);
  void gather_updated(const Bucket& bucket) {
    if (parts_.context->sharding.policy.shard_state) updates().gather(bucket, comm_stream());
  }
  void refresh();  // of all that is computed from masters
  void finish_step() {
    // Threads of the host may still write what the next step reads.
    const bool waits = parts_.offload != nullptr && !submits_early();
    waits ? updates().finish(comm_stream()) : updates().end(comm_stream());
  }
  // True on a GPU: the update is submitted before the host knows the norm, for which a step waits
  // once. It changes nothing if the step is skipped.
  bool submits_early() const { return !parts_.context->device.is_host(); }

  const int exceptions_before_ = std::uncaught_exceptions();
  const EngineParts parts_;
  std::vector<ParameterGroup> groups_;
  Timers timings_;
  EngineProgress counts_;  // of steps
};

TensorView EngineImpl::parameter(ParameterId id) const {
  const Bucket& bucket = bucket_of(id);
  updates().wait(bucket);
  const TensorView full = bucket.params.full;
  ZR_CHECK(full.data != nullptr, "{} is read outside gather and release of module {}",
           parts_.model->spec(id).name, parts_.model->spec(parts_.model->owner(id)).module);
  const ParameterPlace& place = parts_.buckets->place_of(parts_.model->owner(id));
  return full.slice(place.offset, place.numel);
}

void EngineImpl::initialize_parameters(const FillFunction& fill) {
  parts_.gatherer->invalidate();
  stored_states().initialize(fill, [&](const Bucket& bucket) { gather_updated(bucket); });
  updates().finish(comm_stream());
}

void EngineImpl::contribute(std::span<const Contribution> gradients) {
  const Stopwatch watch(timings_.reduce_s);
  std::vector<Contribution> owned(gradients.begin(), gradients.end());
  for (auto& [id, gradient] : owned) {
    if (gradient.numel != numel(id)) {
      fail<ConfigError>("gradient of {}: got {} elements, expected {}", parts_.model->spec(id).name,
                        gradient.numel, numel(id));
    }
    id = parts_.model->owner(id);
  }
  parts_.reducer->add(owned);
  for (const Contribution& one : owned) parts_.reducer->batch().receive(one.parameter);
  while (Bucket* const bucket = parts_.reducer->batch().pop_ready())
    parts_.reducer->reduce(*bucket);
}

EngineImpl::Decided EngineImpl::decide(const GradientReducer::SubmitUpdate& submit_update) {
  ZR_CHECK(
      parts_.reducer->batch().phase() == BatchPhase::step_due && parts_.reducer->batch().is_last(),
      "step() before end_micro_step() returned true");
  if (!submits_early()) {
    const Stopwatch watch(timings_.reduce_s);
    parts_.reducer->wait();
  }
  // Gathers that still run read what the step will write; the collective below waits for all ranks.
  parts_.gatherer->invalidate();
  comm_stream().wait(parts_.gatherer->gathered());
  const Stopwatch watch(timings_.optimizer_s);
  const GradientNorm::Result sum = parts_.reducer->finish(
      parts_.gatherer->order_hash(), parts_.stragglers->end_step(), submit_update);
  parts_.stragglers->add(sum.shares);
  if (submits_early()) parts_.reducer->trim();
  if (!sum.same_gathers) {
    fail<CommError>(
        "the ranks used different modules since the last step, or in another order, and gathered "
        "each other's: at stage 3 on GPUs name the module around them in leaf_module (or stage 2)");
  }
  parts_.context->device.trim_unused();  // the host has just waited for all of the step's work
  StepDecider& decider = *parts_.decider;
  StepResult result{.applied = false, .had_gradient = sum.any, .loss_scale = decider.loss_scale()};
  if (!sum.any) return {result};
  if (!sum.finite && decider.next_overflow_is_fatal()) {
    fail<NumericError>(
        "loss scale {:g} is already the minimum and the gradient still overflows: {}. A nan, or an "
        "inf at this scale, comes from the model or its data, not from the scale; lower the "
        "learning rate, look at that parameter, or train in bf16",
        result.loss_scale, parts_.reducer->inspector().report(comm_stream()));
  }
  const StepDecision decision = decider.decide(sum.norm, sum.finite);
  // `norm` is that of the elements that are finite.
  result.grad_norm = sum.finite ? decision.norm : std::numeric_limits<double>::infinity();
  result.applied = decision.applied;
  result.clip_factor = decision.clip;
  ++(result.applied ? counts_.step_count : counts_.skipped_steps);
  return {result, decision.factor};
}

StepResult EngineImpl::step() {
  const int64_t number = counts_.step_count + 1;
  const auto submit_update = [&] {
    parts_.context->device.inline_stream().wait(comm_stream().record());
    parts_.step->run({number, groups_, parts_.reducer->norm().decision()}, comm_stream(),
                     [&](const Bucket& bucket) { gather_updated(bucket); });
    finish_step();
  };
  if (submits_early()) return decide(submit_update).result;
  const StepResult result = decide({}).result;
  if (!result.applied) return result;
  const Stopwatch watch(timings_.optimizer_s);
  submit_update();
  return result;
}

StepResult EngineImpl::step(const ShardUpdate& update) {
  const auto [result, grad_scale] = decide({});
  if (!result.applied) return result;
  const Stopwatch watch(timings_.optimizer_s);
  try {
    stored_states().update_by_caller(comm_stream(), grad_scale, update);
  } catch (...) {
    --counts_.step_count;
    throw;
  }
  refresh();
  finish_step();
  return result;
}

// A GPU's last error may still be under way; nothing but this tells whoever reads wrong results.
void EngineImpl::end_work() noexcept {
  try {
    parts_.context->device.inline_stream().synchronize();
  } catch (const std::exception& error) {
    if (is_unwinding()) return;
    parts_.context->log().log(LogLevel::error, "{}; what was computed since then is wrong",
                              error.what());
  }
}

std::vector<StateInterval> EngineImpl::state_intervals(std::optional<ParameterId> parameter) {
  updates().wait();
  parts_.reducer->wait();
  if (parameter) parameter = parts_.model->owner(*parameter);
  return stored_states().intervals(parameter);
}

void EngineImpl::visit_states(StateAccess access, const StateVisit& visit) {
  parts_.reducer->wait();
  if (access == StateAccess::write)
    parts_.gatherer->invalidate();  // gathers ahead read what is written
  stored_states().visit(access, visit);
}

void EngineImpl::accept_changes() {
  parts_.gatherer->invalidate();
  parts_.storage->accept_changes();
  updates().finish(comm_stream());
}

void EngineImpl::offload_states() {
  updates().wait();
  parts_.reducer->wait();
  parts_.storage->offload_states();
  parts_.context->device.release_kept();  // for whoever needs the memory
}

void EngineImpl::refresh() {
  parts_.gatherer->invalidate();
  stored_states().refresh_from_masters(
      comm_stream(), [&](const Bucket& bucket) { updates().gather(bucket, comm_stream()); });
}

void EngineImpl::refresh_from_masters() {
  refresh();
  updates().finish(comm_stream());
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
  EngineParts parts =
      make_engine_parts(config, device, comm, std::move(specs), groups.size(), others);
  return std::make_unique<EngineImpl>(std::move(parts), std::move(groups));
}

}  // namespace zerorun
