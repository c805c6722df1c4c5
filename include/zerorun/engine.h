#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "zerorun/communicator.h"
#include "zerorun/config.h"
#include "zerorun/device.h"
#include "zerorun/export.h"
#include "zerorun/loss_scaler.h"
#include "zerorun/tensor.h"
#include "zerorun/work_span.h"

namespace zerorun {

using ParameterId = int;
using ModuleId = int;

// ParameterSpec::ranks of a parameter that other ranks have, and this one only knows by name.
inline constexpr int kElsewhere = -1;

struct ParameterSpec {
  std::string name;            // unique; checkpoint and error messages use it
  std::vector<int64_t> shape;  // may hold zeros
  std::string module;          // parameters of one module are gathered together at stage 3
  int group = 0;               // index into the parameter groups
  bool trainable = true;       // frozen parameters have no gradient and no optimizer bytes
  std::string alias_of{};      // tied: another name for that parameter; shares everything with it
  bool use_muon = false;       // a matrix that optimizer Muon orthogonalizes; the rest gets AdamW
  int ranks = 0;        // who has it: 0 all of the engine's, else EngineGroups::parts[ranks - 1]
  bool counted = true;  // false: a replica of what another part of the model adds to norms
  // Of a frozen parameter that has another dtype than the engine's: it is kept, gathered and saved
  // bit by bit, and never cast. uint8 is bytes whose meaning is the caller's (quantized weights).
  std::optional<DType> dtype{};

  int64_t numel() const {
    int64_t product = 1;
    for (const int64_t size : shape) product *= size;
    return product;
  }
};

// Hyperparameters that may differ between parameters and change between steps.
struct ParameterGroup {
  std::string name = "default";
  float lr = 1e-3F;
  float weight_decay = 0.0F;
  // Instead of the configuration's. beta1 is the momentum of SGD and of Muon's matrices.
  std::optional<double> beta1{};
  std::optional<double> beta2{};
  std::optional<float> eps{};
};

// One of the tensors that an optimizer keeps for a parameter.
struct StateSpec {
  std::string name;  // "exp_avg"
  DType dtype = DType::fp32;
  int64_t block = 1;  // elements of the parameter for each one of the state
  bool operator==(const StateSpec&) const = default;

  // Elements of the state for `elements` of the parameter that begin at a multiple of `block`.
  int64_t numel(int64_t elements) const { return (elements + block - 1) / block; }
};

// The memory for a parameter's gradient in this micro-step.
struct GradientView {
  TensorView view;
  bool accumulate = false;  // false: overwrite (first contribution of this micro-step); true: add
};

// A parameter within the full memory of its bucket, in elements.
struct FullPlace {
  int bucket = 0;
  int64_t offset = 0;
  int64_t bucket_numel = 0;
};

enum class BatchPhase : uint8_t {
  idle,     // no gradient of the current micro-step has come
  open,     // gradients come in, and complete buckets go out
  reduced,  // all gradients that came have gone out; more may come, or the micro-step ends
  step_due  // the batch is complete
};

// The end of a batch.
struct BatchRule {
  int64_t accumulation_steps = 1;  // micro-steps of a batch, over which the gradient is averaged
  std::optional<bool> boundary{};  // instead of counting: whether each micro-step ends a batch
  bool no_sync = false;            // no micro-step does, whatever the others say
};

// The engine's place in its current batch.
struct BatchState {
  BatchPhase phase = BatchPhase::idle;
  int64_t micro_steps = 0;  // ended ones
  bool last = false;        // the current micro-step completes the batch
  BatchRule rule;
};

struct StepResult {
  bool applied = true;       // false: nothing changed, for the gradient was not finite or missing
  bool had_gradient = true;  // false: no rank had one since the last step
  double grad_norm = 0.0;    // global L2 norm of the averaged, unscaled gradient, before clipping
  double clip_factor = 1.0;  // what clipping multiplied the gradient with
  double loss_scale = 1.0;   // what the gradients of this step were made with
};

// The ranks that an engine works with besides those of its communicator, where the model is divided
// among ranks. Communicators outlive the engine.
struct EngineGroups {
  // All ranks that step together, each engine with its part of one model: they share norm, loss
  // scale and the decision about a step. Null: the engine's own ranks.
  Communicator* job = nullptr;
  int part = 0;  // this engine's number among the parts of the model that the job has
  int part_count = 1;
  // Some of the engine's own ranks: those that share a parameter of which others have another one
  // (an expert). See ParameterSpec::ranks.
  std::vector<Communicator*> parts{};
};

// How far training has come: what a checkpoint keeps of an engine besides its tensors.
struct EngineProgress {
  int64_t step_count = 0;                      // applied steps
  int64_t skipped_steps = 0;                   // not applied: the gradient was not finite
  std::optional<LossScalerState> loss_scaler;  // fp16 only
};

// A part of one parameter that this rank holds. The views are in the device's memory unless they
// are offloaded.
struct StateInterval {
  ParameterId parameter = 0;
  int64_t begin = 0;  // first element within the flattened parameter
  int64_t numel = 0;
  bool owned = true;           // false on all but one of the ranks that hold it (shard groups)
  TensorView param;            // in the parameter's dtype
  bool param_on_host = false;  // `param` is offloaded, to host memory or a file's
  // fp32; the same memory as `param` when the model is fp32 or PrecisionConfig::master_is_param
  TensorView master;
  // The reduced gradient: a sum over ranks and micro-steps, still multiplied by the loss scale.
  // Complete from the last end_micro_step to the next gradient(); without data when frozen.
  TensorView grad;
  std::vector<TensorView> states;  // in the order of Engine::state_specs; empty when frozen
  // `master`, `grad` and `states` are offloaded to host memory. An offloaded parameter or master
  // never shares memory with the other.
  bool on_host = false;
};

// A visitor of states asks for parameters, elements and dtypes; or reads; or changes any of it.
enum class StateAccess : uint8_t { shape, read, write };

// Seconds spent since the last call of Engine::take_timings.
struct EngineTimings {
  double reduce_s = 0;     // waiting for or doing gradient reduction
  double gather_s = 0;     // waiting for or doing parameter gathers
  double optimizer_s = 0;  // norm and fused step
};

// OptimizerConfig::type of an engine whose optimizer is the caller's (see Engine::step).
inline constexpr std::string_view kExternalOptimizer = "external";

// The states of an engine, for checkpoints and tools: this rank's part of parameters, masters and
// optimizer states, and how far training has come. Between steps; methods are for the engine's
// thread.
class ZR_API EngineStates {
 public:
  virtual ~EngineStates() = default;

  virtual std::span<const ParameterSpec> parameters() const = 0;
  virtual DType param_dtype() const = 0;
  // dtype of the masters: fp32, or the parameters' when those are their own masters.
  virtual DType master_dtype() const = 0;
  // The tensors that the optimizer keeps for this parameter besides its master; none when frozen.
  virtual std::span<const StateSpec> state_specs(ParameterId id) const = 0;
  virtual Device& device() = 0;

  virtual EngineProgress progress() const = 0;
  virtual void set_progress(const EngineProgress& progress) = 0;
  virtual std::span<ParameterGroup> groups() = 0;

  // The intervals that this rank holds, in parameter order, of one parameter or of all: every
  // element is owned by one rank, and what is written to it has to be the same on all that hold it.
  // Frozen parameters are among them. States in files are read and checked.
  virtual std::vector<StateInterval> state_intervals(std::optional<ParameterId> parameter) = 0;
  std::vector<StateInterval> state_intervals() { return state_intervals(std::nullopt); }
  // Visits the same intervals one by one, always in one order, in no more memory than offloading
  // stages anyway: the views are valid during the call; those of what is not offloaded stay so, as
  // those of state_intervals. After `write`: refresh_from_masters.
  using StateVisit = std::function<void(const StateInterval&)>;
  virtual void visit_states(StateAccess access, const StateVisit& visit) = 0;
  // Call after writing masters or states (a resumed checkpoint): casts the masters into the
  // parameters and brings those to all ranks. Collective.
  virtual void refresh_from_masters() = 0;
  // Call before and after writing parameters together with their masters through state_intervals,
  // without refresh_from_masters: drops gathers that were started ahead, and accepts what files
  // hold. Intervals obtained before are for reading only from then on. Collective.
  virtual void accept_changes() = 0;
  // Moves masters and optimizer states from a GPU's memory to the host's, until reload_states or
  // whatever uses them next. Intervals obtained before end. Between steps.
  virtual void offload_states() = 0;
  virtual void reload_states() = 0;

  // Hash of all full parameters; independent of world size, stage and bucket sizes. Collective;
  // throws CommError when replicas differ.
  virtual uint64_t parameter_hash() = 0;
};

// A gradient of a parameter that a framework has computed.
struct Contribution {
  ParameterId parameter = 0;
  TensorView gradient;
};

// The bucket that a parameter's gradient is reduced with.
struct GradientBucket {
  int index = 0;
  int parameters = 0;  // whose gradients the bucket has
};

// Services for the bindings of a framework, beyond those for a training loop.
class ZR_API EngineHooks {
 public:
  virtual ~EngineHooks() = default;

  // Memory for the full parameters of a bucket, from a gather until nobody needs them any more: the
  // framework's, so that it can wait for its own readers. Default: the device's.
  using FullMemory = std::function<Buffer(int bucket, size_t nbytes)>;
  virtual void use_full_memory(FullMemory memory) = 0;
  // The place of a parameter in that memory; not set when it is full all the time.
  virtual std::optional<FullPlace> full_place(ParameterId id) const = 0;
  // Engine::contribute for several parameters, none of them twice, whose gradients are copied at
  // once.
  virtual void contribute(std::span<const Contribution> gradients) = 0;
  // The parameter is trainable, and on this rank.
  virtual GradientBucket gradient_bucket(ParameterId id) const = 0;
  // At stages 1 and 2 a step may leave gathers of updated parameters under way. Who reads or writes
  // those other than through Engine::parameter or EngineStates lets the inline stream wait first.
  virtual void finish_updates() = 0;
  // The factor that turns StateInterval::grad into the average of unscaled gradients.
  virtual double gradient_average() const = 0;
  // The reduced gradient of a whole parameter, flat, as StateInterval::grad; without data where
  // this rank stores a part of it (from stage 1 on). Who writes to it does so on every rank.
  virtual TensorView whole_gradient(ParameterId id) = 0;
  // Call after writing to StateInterval::grad: the step's norm, clipping and decision about values
  // that are not finite follow what was written. Between reduce_gradients and step.
  virtual void accept_gradients() = 0;
};

// Shards one model's states over the ranks of a communicator (ZeRO stage 0 to 3) and steps it.
//
// Every rank constructs the same engine and, per micro-step, calls gather/release around each
// module's use, gradient + grad_ready for each parameter it used (in any order), and
// end_micro_step; after the last micro-step of a batch, step. Methods are for one thread. The
// device and communicator must outlive the engine.
class ZR_API Engine {
 public:
  // Throws ConfigError for specs that contradict each other, naming the parameter.
  static std::unique_ptr<Engine> create(const Config& config, Device& device, Communicator& comm,
                                        std::vector<ParameterSpec> specs,
                                        std::vector<ParameterGroup> groups,
                                        const EngineGroups& others = {});
  virtual ~Engine() = default;

  virtual std::span<const ParameterSpec> parameters() const = 0;
  virtual ParameterId parameter_id(std::string_view name) const = 0;  // throws ConfigError
  virtual ModuleId module_id(std::string_view name) const = 0;        // throws ConfigError
  virtual int64_t numel(ParameterId id) const = 0;
  virtual DType param_dtype() const = 0;
  // True when the parameter is full between gather and release only (stage 3; not small ones).
  virtual bool is_sharded(ParameterId id) const = 0;
  virtual Device& device() = 0;

  // Fills parameters: `fill(id, begin, out)` writes elements [begin, begin + out.size()) in fp32.
  // Each rank is asked for the elements whose master it stores, and no others. Parameters with a
  // dtype of their own are left out: states() writes those. Collective.
  using FillFunction = std::function<void(ParameterId id, int64_t begin, std::span<float> out)>;
  virtual void initialize_parameters(const FillFunction& fill) = 0;

  // Makes a module's parameters full on this rank, for what the device's inline stream is given
  // from now on; no-op below stage 3. Nested gathers count.
  virtual void gather(ModuleId module) = 0;
  virtual void release(ModuleId module) = 0;
  // The full parameter, flat; valid between gather and release of its module, below stage 3 until
  // the next step: what the inline stream is given after this call finds its new values.
  virtual TensorView parameter(ParameterId id) const = 0;

  // The place where backward writes this parameter's gradient, on the device's inline stream.
  // Throws InternalError for frozen parameters.
  virtual GradientView gradient(ParameterId id) = 0;
  // The gradient that was written there is this rank's whole contribution to the micro-step; its
  // bucket is reduced as soon as all of its parameters are ready.
  virtual void grad_ready(ParameterId id) = 0;
  // The same in one call, for frameworks whose hooks may fire several times: copies `gradient`, or
  // adds it to what came before. The parameter is ready when as many contributions have come as in
  // its last micro-step, at first one. What comes after its bucket went out is reduced with the
  // step, at the price of another round.
  void contribute(ParameterId id, TensorView gradient);
  // Reduces what came so far of this micro-step; parameters that were not used count as zero.
  // Gradients that come after it, before end_micro_step or before step, are reduced in a further
  // round and added. Collective.
  virtual void reduce_gradients() = 0;
  // All gradients of this micro-step are in, and are reduced unless they were. Returns true when a
  // whole batch has been accumulated and step() is due. Collective.
  virtual bool end_micro_step() = 0;
  // Forgets the gradients since the last step. Collective.
  virtual void drop_batch() = 0;
  // Not between a gradient and reduce_gradients or end_micro_step.
  virtual void set_batch_rule(const BatchRule& rule) = 0;
  virtual BatchState batch() const = 0;
  // Multiply the loss with it before backward; 1 unless parameters are fp16.
  virtual double loss_scale() const = 0;
  // Updates the parameters. Without any gradient on any rank nothing changes, and the step does not
  // count. A gradient that is not finite skips the step on every rank; at the
  // minimum loss scale it is an error (NumericError) that names the parameter. CommError when the
  // ranks gathered different modules where gathers are collective. Collective.
  virtual StepResult step() = 0;
  // The same with an optimizer of the caller's (kExternalOptimizer): `update` receives this rank's
  // trainable intervals, whose `grad` is now averaged, unscaled and clipped, and changes `master`.
  // When it throws on any rank, every rank gets an error: the step does not count, masters keep
  // what `update` wrote to them, and the batch is spent.
  using ShardUpdate = std::function<void(std::span<const StateInterval>)>;
  virtual StepResult step(const ShardUpdate& update) = 0;

  virtual std::span<ParameterGroup> groups() = 0;
  virtual EngineStates& states() = 0;
  virtual EngineHooks& hooks() = 0;

  // Bytes of parameters, gradients and optimizer state that this rank holds right now.
  virtual int64_t model_state_bytes() const = 0;
  virtual EngineTimings take_timings() = 0;
  // Learns of each span of time that take_timings adds up: "wait for reductions", "wait for
  // gathers" and "optimizer", on kProgramStream.
  virtual Subscription observe(WorkObserver observer) = 0;
};

}  // namespace zerorun
