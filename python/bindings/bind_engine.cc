#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "core/check.h"
#include "python/bindings/engine_handle.h"
#include "python/bindings/register.h"
#include "python/bindings/tensor_exchange.h"
#include "zerorun/config.h"
#include "zerorun/engine.h"

namespace py = pybind11;
using namespace py::literals;

namespace zerorun {

namespace {

std::unique_ptr<EngineHandle> make_engine(const Config& config, const py::object& communicator,
                                          std::vector<ParameterSpec> specs,
                                          std::vector<ParameterGroup> groups, const py::object& job,
                                          std::pair<int, int> part, const py::object& tensor,
                                          const py::list& parts, int64_t moved_nbytes) {
  auto owner = std::make_shared<EngineOwner>();
  EngineBase base = engine_base_of(communicator);
  owner->comm = std::move(base.comm);
  owner->gpu = std::move(base.gpu);
  EngineGroups others{.part = part.first, .part_count = part.second, .moved_nbytes = moved_nbytes};
  owner->job = job.is_none() ? owner->comm : engine_base_of(job).comm;
  others.job = owner->job.get();
  if (!tensor.is_none()) owner->tensor = engine_base_of(tensor).comm;
  others.tensor = owner->tensor.get();
  for (const py::handle& group : parts) {
    owner->parts.push_back(engine_base_of(py::reinterpret_borrow<py::object>(group)).comm);
    others.parts.push_back(owner->parts.back().get());
  }
  owner->config = config;
  owner->device = owner->gpu == nullptr ? make_cpu_device() : owner->gpu->device();
  if (owner->gpu != nullptr) owner->gpu->follow();
  const py::gil_scoped_release release;
  owner->engine = Engine::create(config, *owner->device, *owner->comm, std::move(specs),
                                 std::move(groups), others);
  return std::make_unique<EngineHandle>(std::move(owner));
}

// Python reads and changes tensors, so `update` runs with the GIL; its errors come through.
StepResult step_with(const EngineHandle& self, const py::function& update, bool finish) {
  return unlocked(self, [&](Engine& engine) {
    const StepResult result = engine.step([&](std::span<const StateInterval> intervals) {
      const py::gil_scoped_acquire acquire;
      update(own(intervals, self.owner()));
    });
    if (finish) engine.hooks().finish_updates();  // PyTorch reads parameters unseen
    return result;
  });
}

StepResult step(const EngineHandle& self, bool finish) {
  return unlocked(self, [&](Engine& engine) {
    const StepResult result = engine.step();
    if (finish) engine.hooks().finish_updates();
    return result;
  });
}

// A method of the engine, of its states or of its hooks, for Python: called without the GIL.
template <typename Part, typename Result>
auto waiting(Result (Part::*method)()) {
  return [method](const EngineHandle& self) {
    return unlocked(self, [method](Engine& core) -> Result {
      if constexpr (std::is_same_v<Part, EngineStates>) return (core.states().*method)();
      if constexpr (std::is_same_v<Part, EngineHooks>) return (core.hooks().*method)();
      if constexpr (std::is_same_v<Part, Engine>) return (core.*method)();
    });
  };
}

// A question to the engine that needs no communication.
template <typename Result, typename... Arguments>
auto of_engine(Result (Engine::*method)(Arguments...) const) {
  return [method](const EngineHandle& self, Arguments... arguments) {
    return (self.engine().*method)(arguments...);
  };
}

void use_parameters(const EngineHandle& self, const std::vector<ParameterId>& parameters) {
  unlocked(self, [&](const Engine& engine) {
    for (const ParameterId id : parameters) engine.parameter(id);
  });
}

// Optimizer states and step count as before the first step.
void reset_optimizer(Engine& engine) {
  engine.states().visit_states(StateAccess::write, [&](const StateInterval& interval) {
    Device& device = interval.on_host ? engine.device().host() : engine.device();
    for (const TensorView& state : interval.states) {
      device.fill(device.inline_stream(), state, 0.0F);
    }
    device.inline_stream().synchronize();
  });
  engine.states().set_progress({});
}

// A scaler's state in the order of LossScalerState.
using ScalerState = std::tuple<double, int64_t, int64_t, int64_t>;

std::optional<ScalerState> loss_scaler(const EngineHandle& self) {
  const std::optional<LossScalerState> state = self.engine().states().progress().loss_scaler;
  if (!state) return std::nullopt;
  return ScalerState{state->cur_scale, state->cur_iter, state->last_overflow_iter,
                     state->cur_hysteresis};
}

// Without a scaler's state the engine keeps its own.
void set_progress(const EngineHandle& self, int64_t step_count, int64_t skipped_steps,
                  const std::optional<ScalerState>& scaler) {
  EngineProgress progress{.step_count = step_count, .skipped_steps = skipped_steps};
  if (scaler) {
    const auto& [cur_scale, cur_iter, last_overflow_iter, cur_hysteresis] = *scaler;
    progress.loss_scaler = {cur_scale, cur_iter, last_overflow_iter, cur_hysteresis};
  }
  self.engine().states().set_progress(progress);
}

using Engines = py::class_<EngineHandle>;

std::string_view name_of(BatchPhase phase) {
  constexpr std::array<std::string_view, 4> kNames = {"idle", "open", "reduced", "step_due"};
  return kNames.at(static_cast<size_t>(phase));
}

// `change` of the rule that says what ends a batch.
template <typename Change>
void change_rule(const EngineHandle& self, const Change& change) {
  BatchRule rule = self.engine().batch().rule;
  change(rule);
  self.engine().set_batch_rule(rule);
}

void define_batch(Engines& engine) {
  engine
      .def_property_readonly(
          "phase", [](const EngineHandle& self) { return name_of(self.engine().batch().phase); },
          "\"idle\", \"open\", \"reduced\" or \"step_due\".")
      .def_property_readonly(
          "batch_micro_steps",
          [](const EngineHandle& self) { return self.engine().batch().micro_steps; },
          "Micro-steps of the current batch that have ended.")
      .def_property_readonly(
          "is_last_micro_step", [](const EngineHandle& self) { return self.engine().batch().last; },
          "Whether the current micro-step completes a batch.")
      .def_property(
          "accumulation_steps",
          [](const EngineHandle& self) { return self.engine().batch().rule.accumulation_steps; },
          [](const EngineHandle& self, int64_t steps) {
            change_rule(self, [&](BatchRule& rule) { rule.accumulation_steps = steps; });
          },
          "Micro-steps of a batch, over which the gradient is averaged.")
      .def_property(
          "boundary", [](const EngineHandle& self) { return self.engine().batch().rule.boundary; },
          [](const EngineHandle& self, std::optional<bool> boundary) {
            change_rule(self, [&](BatchRule& rule) { rule.boundary = boundary; });
          },
          "Whether the coming micro-steps each end a batch; None: they are counted.")
      .def_property(
          "no_sync", [](const EngineHandle& self) { return self.engine().batch().rule.no_sync; },
          [](const EngineHandle& self, bool no_sync) {
            change_rule(self, [&](BatchRule& rule) { rule.no_sync = no_sync; });
          },
          "No micro-step ends a batch.");
}

void define_training(Engines& engine) {
  engine
      .def("reduce_gradients", waiting(&Engine::reduce_gradients),
           "Reduces what came so far of this micro-step; unused parameters count as zero. "
           "Collective.")
      .def("reduce_late_gradients", waiting(&EngineHooks::reduce_late_gradients),
           "Reduces what came after its bucket was reduced, before gradients are read. Collective.")
      .def("end_micro_step", waiting(&Engine::end_micro_step),
           "True when a whole batch has been accumulated and a step is due. Collective.")
      .def("drop_batch", waiting(&Engine::drop_batch),
           "Forgets the gradients since the last step. Collective.")
      .def_property_readonly("loss_scale", of_engine(&Engine::loss_scale))
      .def_property_readonly(
          "gradient_average",
          [](const EngineHandle& self) { return self.engine().hooks().gradient_average(); })
      .def("step", &step, "finish"_a = true,
           "Updates the parameters. Without `finish`, their gathers may continue until "
           "use_parameters or finish_updates. Collective.")
      .def("step_with", &step_with, "update"_a, "finish"_a = true,
           "As step, with an optimizer of the caller's: `update` gets this rank's intervals, whose "
           "`grad` is averaged, unscaled and clipped, and changes `master`. Collective.")
      .def("use_parameters", &use_parameters, "parameters"_a,
           "Later work on these parameters, and on those of their buckets, sees updated values.")
      .def("finish_updates", waiting(&EngineHooks::finish_updates),
           "As use_parameters, of all parameters.")
      .def(
          "groups",
          [](const EngineHandle& self) {
            std::vector<ParameterGroup*> groups;
            for (ParameterGroup& group : self.engine().groups()) groups.push_back(&group);
            return groups;
          },
          py::return_value_policy::reference_internal);
}

void define_state(Engines& engine) {
  engine
      .def(
          "state_intervals",
          [](const EngineHandle& self, std::optional<ParameterId> parameter) {
            const auto held = unlocked(
                self, [&](Engine& core) { return core.states().state_intervals(parameter); });
            return own(held, self.owner());
          },
          "parameter"_a = py::none(),
          "What this rank holds (of one parameter): every element is owned by one rank.")
      .def(
          "whole_gradient",
          [](const EngineHandle& self, ParameterId id) -> std::optional<py::capsule> {
            const TensorView view =
                unlocked(self, [&](Engine& core) { return core.hooks().whole_gradient(id); });
            if (view.data == nullptr) return std::nullopt;
            return export_view(view, self.owner(), self.owner()->where());
          },
          "index"_a, "The whole reduced gradient where this rank stores it (stage 0), or None.")
      .def(
          "decoded_part",
          [](const EngineHandle& self, ParameterId id) -> std::optional<py::capsule> {
            Buffer values =
                unlocked(self, [&](Engine& core) { return core.hooks().decoded_part(id); });
            if (!values) return std::nullopt;
            using Kept = std::pair<std::shared_ptr<EngineOwner>, Buffer>;  // goes before the device
            const auto kept = std::make_shared<Kept>(self.owner(), std::move(values));
            const DType dtype = self.engine().param_dtype();
            const auto numel = static_cast<int64_t>(kept->second.nbytes() / size_of(dtype));
            return export_view(view_of(kept->second, dtype, numel), kept, self.owner()->where());
          },
          "index"_a,
          "What ranks compute with in place of this rank's part of the parameter, if its gathers "
          "are quantized and it is always full, or None; then padding.")
      .def(
          "state_names",
          [](const EngineHandle& self, ParameterId parameter) {
            std::vector<std::string> names;
            for (const StateSpec& spec : self.engine().states().state_specs(parameter)) {
              names.push_back(spec.name);
            }
            return names;
          },
          "parameter"_a, "Names of StateInterval.states of this parameter.");
}

void define_steps(Engines& engine) {
  engine
      .def("refresh_from_masters", waiting(&EngineStates::refresh_from_masters),
           "Casts the masters into the parameters again, on all ranks. Collective.")
      .def("accept_changes", waiting(&EngineStates::accept_changes),
           "Before and after parameters with their masters are written without "
           "refresh_from_masters. "
           "Collective.")
      .def("accept_gradients", waiting(&EngineHooks::accept_gradients),
           "After gradients were written: the next step's norm and decision follow them.")
      .def("parameter_hash", waiting(&EngineStates::parameter_hash),
           "The same for every world size, stage and bucket size. Collective.")
      .def(
          "reset_optimizer", [](const EngineHandle& self) { unlocked(self, reset_optimizer); },
          "Optimizer states and step count as before the first step.")
      .def_property_readonly(
          "step_count",
          [](const EngineHandle& self) { return self.engine().states().progress().step_count; })
      .def_property_readonly(
          "skipped_steps",
          [](const EngineHandle& self) { return self.engine().states().progress().skipped_steps; })
      .def_property_readonly("loss_scaler", &loss_scaler,
                             "(cur_scale, cur_iter, last_overflow_iter, cur_hysteresis); None "
                             "without fp16.")
      .def(
          "set_progress", &set_progress, "step_count"_a, "skipped_steps"_a,
          "loss_scaler"_a = py::none(),
          "How far training has come. `loss_scaler`: as the property, None to keep it; ConfigError "
          "for what no scaler can be in.");
}

void define_memory(Engines& engine) {
  engine
      .def("offload_states", waiting(&EngineStates::offload_states),
           "Moves masters and optimizer states from a GPU to host memory, until reload_states() or "
           "their next use. Tensors that view them end.")
      .def("reload_states", waiting(&EngineStates::reload_states), "Brings them back.")
      .def_property_readonly("model_state_bytes", of_engine(&Engine::model_state_bytes))
      .def("memory_use", [](const EngineHandle& self) {
        std::map<std::string, int64_t> use;
        for (int i = 0; i < kMemoryCategories; ++i) {
          const auto category = static_cast<MemoryCategory>(i);
          use.emplace(name_of(category), self.engine().device().memory_use(category).live_bytes);
        }
        return use;
      });
}

}  // namespace

void register_engine(py::module_& m) {
  register_specs(m);
  m.attr("EXTERNAL_OPTIMIZER") = std::string(kExternalOptimizer);
  Engines engine(m, "Engine", "Shards one model's states over the ranks and steps it.");
  engine
      .def(py::init(&make_engine), "config"_a, "communicator"_a, "specs"_a, "groups"_a,
           "job"_a = py::none(), "part"_a = std::pair(0, 1), "tensor"_a = py::none(),
           "parts"_a = py::list(), "moved_nbytes"_a = 0,
           "`job`: of all ranks that step together, where the engine has part number part[0] of "
           "part[1] of one model. `tensor`: of the ranks that hold the parts of this rank's "
           "tensors. `parts`: of some of the engine's ranks, who share an expert. "
           "`moved_nbytes`: host memory that is free once the engine has the values. "
           "Collective. Raises ConfigError for what contradicts each other.")
      .def(
          "parameter",
          [](const EngineHandle& self, ParameterId id) {
            return export_view(self.enter().parameter(id), self.owner(), self.owner()->where());
          },
          "index"_a, "The full parameter, flat, as a DLPack capsule.")
      .def("parameter_id", of_engine(&Engine::parameter_id), "name"_a)
      .def_property_readonly("param_dtype", of_engine(&Engine::param_dtype))
      .def("is_sharded", of_engine(&Engine::is_sharded), "index"_a,
           "Whether the parameter is full between gather and release only.")
      .def(
          "full_place",
          [](const EngineHandle& self,
             ParameterId id) -> std::optional<std::tuple<int, int64_t, int64_t>> {
            const std::optional<FullPlace> place = self.engine().hooks().full_place(id);
            if (!place) return std::nullopt;
            return std::tuple(place->bucket, place->offset, place->bucket_numel);
          },
          "index"_a,
          "(bucket, first element in its full memory, elements of that) of a parameter whose full "
          "memory comes and goes; None: `parameter` always is in the same place.")
      .def("use_full_memory", &use_full_memory, "acquire"_a, "release"_a, "out_of_memory"_a,
           "`acquire(bucket)` returns the address of memory for a bucket's full parameters, or "
           "raises an exception of the class `out_of_memory`; `release(bucket)` ends its use. "
           "Between gathers.")
      .def_property_readonly("closed", &EngineHandle::closed)
      .def("close", &EngineHandle::close,
           "Lets go of the engine; its memory ends with the last tensor that views it.");
  define_training(engine);
  define_batch(engine);
  define_state(engine);
  define_steps(engine);
  define_memory(engine);
}

}  // namespace zerorun
