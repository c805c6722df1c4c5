#pragma once

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
#include "zerorun/straggler.h"
#include "zerorun/tensor.h"
#include "zerorun/work_span.h"

namespace zerorun {

using ParameterId = int;
using ModuleId = int;

// Value of ParameterSpec::ranks for a parameter that only other ranks hold; this rank knows only
// its name and shape. An index in the list of parameters means the same one on every rank.
inline constexpr int kElsewhere = -1;

struct ParameterSpec {
  std::string name;            // unique; used in checkpoints and error messages
  std::vector<int64_t> shape;  // may hold zeros
  std::string module;     // name of the module; at stage 3 its parameters are gathered together
  int group = 0;          // index into the parameter groups
  bool trainable = true;  // false: frozen, without gradient and optimizer state
  // name of the parameter with which this one is tied, and shares everything
  std::string alias_of{};
  // with optimizer Muon: a matrix that Muon updates; AdamW updates the others
  bool use_muon = false;
  // with optimizer Muon: blocks of rows that it updates as matrices of their own
  int64_t heads = 1;
  bool outputs_are_columns = false;  // such heads would be blocks of columns, and are refused
  // ranks that hold it: 0: all ranks of the engine, else those of EngineGroups::parts[ranks - 1]
  int ranks = 0;
  bool counted = true;  // false: a replica, which another part of the model already counts in norms
  // This rank's part of a tensor that is divided among the ranks of EngineGroups::tensor.
  bool divided = false;
  // A copy of what a rank before this one in EngineGroups::tensor holds.
  bool replica = false;
  // Set for a frozen parameter whose dtype differs from the engine's: its bits are stored, gathered
  // and saved unchanged and never cast. uint8 means bytes that only the caller interprets
  // (quantized weights).
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
  // Override the values of the configuration. beta1 is the momentum for SGD and for the matrices of
  // Muon.
  std::optional<double> beta1{};
  std::optional<double> beta2{};
  std::optional<float> eps{};
};

// Describes one of the state tensors that an optimizer keeps for a parameter.
struct StateSpec {
  std::string name;  // "exp_avg"
  DType dtype = DType::fp32;
  int64_t block = 1;  // number of elements of the parameter per element of the state
  bool operator==(const StateSpec&) const = default;

  // Number of state elements for `elements` elements of the parameter, the first of which is at a
  // multiple of `block`.
  int64_t numel(int64_t elements) const { return (elements + block - 1) / block; }
};

// The memory into which backward writes a parameter's gradient in this micro-step.
struct GradientView {
  TensorView view;
  // false: overwrite it (first contribution of this micro-step); true: add to it
  bool accumulate = false;
};

// The place of a parameter in the full memory of its bucket, in elements.
struct FullPlace {
  int bucket = 0;
  int64_t offset = 0;
  int64_t bucket_numel = 0;
};

enum class BatchPhase : uint8_t {
  idle,     // no gradient of the current micro-step has arrived
  open,     // gradients arrive, and complete buckets are reduced
  reduced,  // all gradients that arrived are reduced; more may arrive, or the micro-step may end
  step_due  // the batch is complete
};

// When a batch ends.
struct BatchRule {
  // number of micro-steps of a batch, over which the gradient is averaged
  int64_t accumulation_steps = 1;
  // if set, decides instead of counting: whether each micro-step ends a batch
  std::optional<bool> boundary{};
  bool no_sync = false;  // true: no micro-step ends a batch, whatever the other members say
};

// The engine's progress within the current batch.
struct BatchState {
  BatchPhase phase = BatchPhase::idle;
  int64_t micro_steps = 0;  // number of completed micro-steps
  bool last = false;        // true if the current micro-step is the last one of the batch
  BatchRule rule;
};

struct StepResult {
  // false: the step was skipped, because the gradient was not finite or missing
  bool applied = true;
  bool had_gradient = true;  // false: no rank has had a gradient since the last step
  // global L2 norm of the averaged, unscaled gradient, before clipping; inf if it is not finite
  double grad_norm = 0.0;
  double clip_factor = 1.0;  // factor by which clipping multiplied the gradient
  double loss_scale = 1.0;   // loss scale with which the gradients of this step were computed
};

// Further groups of ranks that an engine works with if the model is divided among ranks (tensor or
// pipeline parallelism, experts). The communicators must outlive the engine.
struct EngineGroups {
  // All ranks that train one model, each with its part: they have one gradient norm and loss scale,
  // and skip the same steps. Null: the ranks of the engine's communicator.
  Communicator* job = nullptr;
  int part = 0;  // index of this engine's part of the model
  int part_count = 1;
  // The ranks that together hold the tensors of which this rank has parts (tensor parallelism), one
  // rank for each part. They have the same parameters in the same order. Null: tensors are whole.
  Communicator* tensor = nullptr;
  // Subsets of the engine's ranks that share parameters which the other ranks do not hold
  // (experts). See ParameterSpec::ranks.
  std::vector<Communicator*> parts{};
  // Bytes of this rank's host memory that will be free when the engine has the model's values,
  // since they are moved there. It counts as available.
  int64_t moved_nbytes = 0;
};

// The progress of training: the state of an engine that a checkpoint saves besides tensors.
struct EngineProgress {
  int64_t step_count = 0;     // number of applied steps
  int64_t skipped_steps = 0;  // number of steps skipped because the gradient was not finite
  std::optional<LossScalerState> loss_scaler;  // fp16 only
};

// An interval of a parameter that this rank holds, with its states. The views are in device memory
// unless they are offloaded.
struct StateInterval {
  ParameterId parameter = 0;
  int64_t begin = 0;  // index of the first element within the flattened parameter
  int64_t numel = 0;
  // true on exactly one of the ranks that hold the interval (several hold it with shard groups)
  bool owned = true;
  TensorView param;  // values in the parameter's dtype
  // `param` is offloaded, and the view is in host memory or in a mapped file
  bool param_on_host = false;
  // fp32; same memory as `param` if the model is fp32 or PrecisionConfig::master_is_param is set
  TensorView master;
  // The reduced gradient: the sum over ranks and micro-steps, multiplied by the loss scale.
  // Complete from the last end_micro_step until the next gradient(); empty if the parameter is
  // frozen.
  TensorView grad;
  // in the order of EngineStates::state_specs; empty if the parameter is frozen
  std::vector<TensorView> states;
  // `master`, `grad` and `states` are offloaded, and the views are in host memory. If parameter or
  // master is offloaded, they do not share memory.
  bool on_host = false;
};

// How a visitor accesses states: only shapes and dtypes, reading values, or also writing them.
enum class StateAccess : uint8_t { shape, read, write };

// Times in seconds since the last call of Engine::take_timings.
struct EngineTimings {
  double reduce_s = 0;     // time that the caller waited for or performed reductions of gradients
  double gather_s = 0;     // time that the caller waited for or performed gathers of parameters
  double optimizer_s = 0;  // time of gradient norm and fused update
};

// Value of OptimizerConfig::type for an engine whose caller provides the optimizer (see
// Engine::step).
inline constexpr std::string_view kExternalOptimizer = "external";

// Access to the states of an engine, for checkpoints and tools: this rank's part of parameters,
// master parameters and optimizer states, and the progress of training. Call the methods between
// steps, on the engine's thread.
class ZR_API EngineStates {
 public:
  virtual ~EngineStates() = default;

  virtual std::span<const ParameterSpec> parameters() const = 0;
  virtual DType param_dtype() const = 0;
  // dtype of the master parameters: fp32, or that of the parameters with
  // PrecisionConfig::master_is_param.
  virtual DType master_dtype() const = 0;
  // Describes the tensors that the optimizer keeps for a parameter besides its master; none if it
  // is frozen.
  virtual std::span<const StateSpec> state_specs(ParameterId id) const = 0;
  virtual Device& device() = 0;

  virtual EngineProgress progress() const = 0;
  virtual void set_progress(const EngineProgress& progress) = 0;
  virtual std::span<ParameterGroup> groups() = 0;

  // Returns the intervals that this rank holds, in the order of parameters, of one parameter or of
  // all, frozen ones included. Every element is owned by exactly one rank; a caller that writes an
  // element must write the same value on all ranks that hold it. States in files are read and
  // verified.
  virtual std::vector<StateInterval> state_intervals(std::optional<ParameterId> parameter) = 0;
  std::vector<StateInterval> state_intervals() { return state_intervals(std::nullopt); }
  // Visits the same intervals one by one, always in the same order, without needing more memory
  // than the staging buffers of offloading. Views of offloaded data are valid only during the call
  // of `visit`; other views stay valid like those of state_intervals. After StateAccess::write call
  // refresh_from_masters.
  using StateVisit = std::function<void(const StateInterval&)>;
  virtual void visit_states(StateAccess access, const StateVisit& visit) = 0;
  // Must be called after writing masters or states (loading a checkpoint): casts the masters to the
  // parameters and gathers these on all ranks. Collective.
  virtual void refresh_from_masters() = 0;
  // Must be called before and after writing parameters together with their masters through
  // state_intervals, as an alternative to refresh_from_masters: drops prefetched gathers, and
  // hashes data that was changed in mapped files. Intervals obtained before the call may only be
  // read afterwards. Collective.
  virtual void accept_changes() = 0;
  // Moves masters and optimizer states from GPU memory to host memory, until reload_states or the
  // next use of them. Intervals obtained before become invalid. Call it between steps.
  virtual void offload_states() = 0;
  virtual void reload_states() = 0;

  // Returns a hash of all full parameters, which does not depend on world size, stage and bucket
  // sizes. Collective. Throws CommError if replicas differ.
  virtual uint64_t parameter_hash() = 0;
};

// A parameter's gradient that a framework has computed.
struct Contribution {
  ParameterId parameter = 0;
  TensorView gradient;
};

// The bucket with which a parameter's gradient is reduced.
struct GradientBucket {
  int index = 0;
  int parameters = 0;  // number of parameters in the bucket
};

// Additional functions for the bindings of a framework, which a training loop does not need.
class ZR_API EngineHooks {
 public:
  virtual ~EngineHooks() = default;

  // Sets the function that allocates memory for the full parameters of a bucket for the time from
  // gather to release, or throws OutOfMemory. With its own memory a framework can wait for its own
  // readers. Default: memory of the device.
  using FullMemory = std::function<Buffer(int bucket, size_t nbytes)>;
  virtual void use_full_memory(FullMemory memory) = 0;
  // Returns the place of a parameter in that memory; not set if the parameter is always full.
  virtual std::optional<FullPlace> full_place(ParameterId id) const = 0;
  // Does Engine::contribute for several different parameters, copying all gradients at once.
  virtual void contribute(std::span<const Contribution> gradients) = 0;
  // Returns the bucket of a parameter, which must be trainable and held by this rank.
  virtual GradientBucket gradient_bucket(ParameterId id) const = 0;
  // Makes the inline stream wait for gathers of updated parameters that a step at stage 1 or 2 may
  // have left running. Call it before accessing parameters by other means than Engine::parameter
  // and EngineStates.
  virtual void finish_updates() = 0;
  // Returns the factor that turns StateInterval::grad into the average of unscaled gradients.
  virtual double gradient_average() const = 0;
  // Returns the reduced gradient of a whole parameter, flattened, like StateInterval::grad; empty
  // if this rank stores only a part of it (stages 1 to 3). A caller that writes to it must do so on
  // every rank.
  virtual TensorView whole_gradient(ParameterId id) = 0;
  // Returns the values with which ranks compute in place of this rank's part of a parameter
  // (StateInterval::param, all intervals side by side, then padding), if gathers of it are
  // quantized and it is always full (stages 1 and 2); empty otherwise.
  virtual Buffer decoded_part(ParameterId id) = 0;
  // Must be called after writing to StateInterval::grad, between reduce_gradients and step:
  // computes the gradient norm again, on which clipping and skipping depend.
  virtual void accept_gradients() = 0;
  // Reduces contributions that arrived after their bucket was reduced, on any rank, which otherwise
  // wait for step(). Call it between reduce_gradients and a use of StateInterval::grad. Collective:
  // the ranks ask each other once after each reduce_gradients.
  virtual void reduce_late_gradients() = 0;
};

// Trains one model whose states are sharded over the ranks of a communicator (ZeRO stages 0 to 3).
//
// Every rank creates the same engine. In each micro-step it calls gather and release around each
// use of a module, gradient and grad_ready for each parameter that it used (in any order), and
// end_micro_step. After the last micro-step of a batch it calls step. All methods must be called on
// one thread. Device and communicator must outlive the engine.
class ZR_API Engine {
 public:
  // Throws ConfigError, naming the parameter, if `specs` contradict each other.
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
  // True if the parameter is full only between gather and release (stage 3, except small
  // parameters).
  virtual bool is_sharded(ParameterId id) const = 0;
  virtual Device& device() = 0;

  // Sets the initial values: `fill(id, begin, out)` must write elements [begin, begin + out.size())
  // of a parameter in fp32. It is called on each rank only for the elements whose master this rank
  // stores, and not for parameters with ParameterSpec::dtype, which are written through states().
  // Collective.
  using FillFunction = std::function<void(ParameterId id, int64_t begin, std::span<float> out)>;
  virtual void initialize_parameters(const FillFunction& fill) = 0;

  // Makes the full parameters of a module available to work that is submitted to the device's
  // inline stream after the call. Does nothing below stage 3. Gathers may be nested; each needs a
  // release.
  virtual void gather(ModuleId module) = 0;
  virtual void release(ModuleId module) = 0;
  // Returns the full parameter, flattened. At stage 3 the view is valid between gather and release
  // of its module, otherwise until the next step. Work that is submitted to the inline stream after
  // this call sees the updated values.
  virtual TensorView parameter(ParameterId id) const = 0;

  // Returns the memory into which backward writes this parameter's gradient, on the device's inline
  // stream. Throws InternalError if the parameter is frozen.
  virtual GradientView gradient(ParameterId id) = 0;
  // Declares that the gradient is complete for this rank and micro-step. The bucket is reduced as
  // soon as the gradients of all its parameters are ready.
  virtual void grad_ready(ParameterId id) = 0;
  // Combines gradient() and grad_ready(), for frameworks whose hooks may fire several times per
  // parameter: copies `gradient`, or adds it to earlier contributions. The parameter is ready when
  // it has received as many contributions as in its last micro-step, initially one. A contribution
  // that arrives after its bucket was reduced is reduced during the step, which costs another round
  // of reductions.
  void contribute(ParameterId id, TensorView gradient);
  // Reduces all gradients of this micro-step that have arrived; those of unused parameters count as
  // zero. Gradients that arrive later, before end_micro_step or step, are reduced in another round
  // and added. Collective.
  virtual void reduce_gradients() = 0;
  // Ends the micro-step and reduces the gradients that are not reduced yet. Returns true if this
  // was the last micro-step of a batch, so that step() is due. Collective.
  virtual bool end_micro_step() = 0;
  // Discards the gradients since the last step. Collective.
  virtual void drop_batch() = 0;
  // Must not be called between a gradient and the next reduce_gradients or end_micro_step.
  virtual void set_batch_rule(const BatchRule& rule) = 0;
  virtual BatchState batch() const = 0;
  // Factor by which to multiply the loss before backward; 1 unless parameters are fp16.
  virtual double loss_scale() const = 0;
  // Updates the parameters. Collective. If no rank has a gradient, nothing changes and the step is
  // not counted. If the gradient is not finite, all ranks skip the step; if the loss scale is then
  // already at its minimum, throws NumericError that names the parameter. Throws CommError if the
  // ranks gathered different modules although gathers are collective.
  virtual StepResult step() = 0;
  // Like step(), with an optimizer that the caller provides (kExternalOptimizer): `update` receives
  // this rank's trainable intervals, whose `grad` is averaged, unscaled and clipped, and changes
  // `master`. On a GPU it does so in the order of the inline stream, for which the host does not
  // wait. If it throws on any rank, all ranks throw an error: the step is not counted, masters
  // keep what `update` wrote, and the gradients of the batch are discarded.
  using ShardUpdate = std::function<void(std::span<const StateInterval>)>;
  virtual StepResult step(const ShardUpdate& update) = 0;

  virtual std::span<ParameterGroup> groups() = 0;
  virtual EngineStates& states() = 0;
  virtual EngineHooks& hooks() = 0;

  // Returns the bytes of parameters, gradients and optimizer states that this rank holds now.
  virtual int64_t model_state_bytes() const = 0;
  virtual EngineTimings take_timings() = 0;
  // Tells the engine in what its caller spends the time from now on; returns in what before. What
  // the engine does itself, and waits for, it knows.
  virtual StepPart enter(StepPart part) = 0;
  virtual StragglerReport stragglers() const = 0;
  // Calls `observer` for each span of time that take_timings adds up: "wait for reductions", "wait
  // for gathers" and "optimizer", on kProgramStream.
  virtual Subscription observe(WorkObserver observer) = 0;
};

}  // namespace zerorun
