#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/checks/suggest.h"
#include "config/docs/report.h"
#include "config/elasticity.h"
#include "config/json/reader.h"
#include "core/check.h"
#include "core/printable.h"
#include "python/bindings/register.h"
#include "zerorun/config.h"
#include "zerorun/dtype.h"
#include "zerorun/lr_schedule.h"

namespace py = pybind11;
using namespace py::literals;

namespace zerorun {

namespace {

// "ZeroConfig(stage=2, ...)" from the properties of the object's class, in their order.
std::string repr(const py::object& self) {
  const py::object type = py::type::of(self);
  const py::object property = py::module_::import("builtins").attr("property");
  std::string fields;
  for (const auto& [name, member] : py::dict(py::dict(type.attr("__dict__")))) {
    if (!py::isinstance(member, property)) continue;
    const std::string text = py::repr(self.attr(name));
    fields += (fields.empty() ? "" : ", ") + name.cast<std::string>() + "=" + text;
  }
  return type.attr("__name__").cast<std::string>() + "(" + fields + ")";
}

template <typename T>
py::class_<T> read_only_struct(py::module_& m, const char* name, const char* doc) {
  return py::class_<T>(m, name, doc).def("__repr__", &repr);
}

void register_batch(py::module_& m) {
  read_only_struct<BatchConfig>(m, "BatchConfig", "Batch sizes; 0 means not given.")
      .def(py::init(
               [](int64_t train_batch_size, int64_t micro_batch_size, int64_t accumulation_steps) {
                 return BatchConfig{train_batch_size, micro_batch_size, accumulation_steps};
               }),
           py::kw_only(), "train_batch_size"_a = 0, "micro_batch_size"_a = 0,
           "accumulation_steps"_a = 0)
      .def_readonly("train_batch_size", &BatchConfig::train_batch_size)
      .def_readonly("micro_batch_size", &BatchConfig::micro_batch_size)
      .def_readonly("accumulation_steps", &BatchConfig::accumulation_steps);
}

void register_precision(py::module_& m) {
  read_only_struct<LossScalerOptions>(m, "LossScalerOptions", "Loss scaling of training in fp16.")
      .def_readonly("static_scale", &LossScalerOptions::static_scale)
      .def_readonly("initial_scale_power", &LossScalerOptions::initial_scale_power)
      .def_readonly("window", &LossScalerOptions::window)
      .def_readonly("hysteresis", &LossScalerOptions::hysteresis)
      .def_readonly("consecutive_hysteresis", &LossScalerOptions::consecutive_hysteresis)
      .def_readonly("min_scale", &LossScalerOptions::min_scale);
  read_only_struct<PrecisionConfig>(m, "PrecisionConfig", "Types of parameters and gradients.")
      .def_readonly("param_dtype", &PrecisionConfig::param_dtype)
      .def_readonly("grad_accum_dtype", &PrecisionConfig::grad_accum_dtype)
      .def_readonly("state_dtype", &PrecisionConfig::state_dtype)
      .def_readonly("master_is_param", &PrecisionConfig::master_is_param)
      .def_readonly("communication_dtype", &PrecisionConfig::communication_dtype)
      .def_property_readonly("gradient_reduction",
                             [](const PrecisionConfig& self) {
                               return self.gradient_reduction == GradientReduction::sum ? "sum"
                                                                                        : "mean";
                             })
      .def_readonly("prescale_gradients", &PrecisionConfig::prescale_gradients)
      .def_readonly("gradient_predivide_factor", &PrecisionConfig::gradient_predivide_factor)
      .def_readonly("check_grad_overflow", &PrecisionConfig::check_grad_overflow)
      .def_readonly("auto_cast_inputs", &PrecisionConfig::auto_cast_inputs)
      .def_readonly("scales_loss", &PrecisionConfig::scales_loss)
      .def_readonly("loss_scaler", &PrecisionConfig::loss_scaler);
}

void register_optimizer(py::module_& m) {
  read_only_struct<OptimizerConfig>(m, "OptimizerConfig", "The optimizer and its parameters.")
      .def_readonly("type", &OptimizerConfig::type)
      .def_readonly("lr", &OptimizerConfig::lr)
      .def_readonly("beta1", &OptimizerConfig::beta1)
      .def_readonly("beta2", &OptimizerConfig::beta2)
      .def_readonly("eps", &OptimizerConfig::eps)
      .def_readonly("weight_decay", &OptimizerConfig::weight_decay)
      .def_readonly("bias_correction", &OptimizerConfig::bias_correction)
      .def_readonly("adam_w_mode", &OptimizerConfig::adam_w_mode)
      .def_readonly("momentum", &OptimizerConfig::momentum)
      .def_readonly("dampening", &OptimizerConfig::dampening)
      .def_readonly("nesterov", &OptimizerConfig::nesterov)
      .def_readonly("lr_decay", &OptimizerConfig::lr_decay)
      .def_readonly("eps_inside_sqrt", &OptimizerConfig::eps_inside_sqrt)
      .def_readonly("min_coeff", &OptimizerConfig::min_coeff)
      .def_readonly("max_coeff", &OptimizerConfig::max_coeff)
      .def_readonly("ns_steps", &OptimizerConfig::ns_steps)
      .def_readonly("ns_method", &OptimizerConfig::ns_method)
      .def_readonly("muon_heads", &OptimizerConfig::muon_heads)
      .def_readonly("muon_lr", &OptimizerConfig::muon_lr)
      .def_readonly("adam_lr", &OptimizerConfig::adam_lr);
}

void register_sections(py::module_& m) {
  // Its parameters are in ParsedConfig.values; make_lr_schedule reads them.
  read_only_struct<SchedulerConfig>(m, "SchedulerConfig", "The learning rate schedule.")
      .def_readonly("type", &SchedulerConfig::type)
      .def_readonly("total_num_steps", &SchedulerConfig::total_num_steps)
      .def_readonly("warmup_num_steps", &SchedulerConfig::warmup_num_steps)
      .def_readonly("last_batch_iteration", &SchedulerConfig::last_batch_iteration);
  read_only_struct<CheckpointConfig>(m, "CheckpointConfig", "How a run saves.")
      .def_readonly("async_save", &CheckpointConfig::async_save)
      .def_readonly("async_buffer_size", &CheckpointConfig::async_buffer_size)
      .def_readonly("keep_last", &CheckpointConfig::keep_last)
      .def_readonly("keep_every", &CheckpointConfig::keep_every);
  read_only_struct<ZeroConfig>(m, "ZeroConfig", "What is sharded, and in which portions.")
      .def_readonly("stage", &ZeroConfig::stage)
      .def_readonly("shard_group_size", &ZeroConfig::shard_group_size)
      .def_readonly("reduce_bucket_size", &ZeroConfig::reduce_bucket_size)
      .def_readonly("allgather_bucket_size", &ZeroConfig::allgather_bucket_size)
      .def_readonly("overlap_comm", &ZeroConfig::overlap_comm)
      .def_readonly("overlap_param_gather", &ZeroConfig::overlap_param_gather)
      .def_readonly("prefetch_bucket_size", &ZeroConfig::prefetch_bucket_size)
      .def_readonly("param_persistence_threshold", &ZeroConfig::param_persistence_threshold)
      .def_readonly("model_persistence_threshold", &ZeroConfig::model_persistence_threshold)
      .def_readonly("max_live_parameters", &ZeroConfig::max_live_parameters)
      .def_readonly("max_reuse_distance", &ZeroConfig::max_reuse_distance);
}

void register_whole(py::module_& m) {
  read_only_struct<Config>(m, "Config", "The typed form of a ds_config.json.")
      .def_readonly("batch", &Config::batch)
      .def_readonly("precision", &Config::precision)
      .def_readonly("optimizer", &Config::optimizer)
      .def_readonly("scheduler", &Config::scheduler)
      .def_readonly("zero", &Config::zero)
      .def_readonly("gradient_clipping", &Config::gradient_clipping)
      .def_readonly("steps_per_print", &Config::steps_per_print)
      .def_readonly("wall_clock_breakdown", &Config::wall_clock_breakdown)
      .def_readonly("checkpoint", &Config::checkpoint)
      .def_readonly("comm_timeout_s", &Config::comm_timeout_s)
      .def_readonly("share_parameters", &Config::share_parameters)
      .def_readonly("train_options", &Config::train_options)
      .def_readonly("source", &Config::source);
  read_only_struct<ConfigValue>(m, "ConfigValue", "One key of a configuration, and its value.")
      .def_readonly("pointer", &ConfigValue::pointer)
      .def_readonly("value", &ConfigValue::value)
      .def_readonly("is_given", &ConfigValue::is_given)
      .def_readonly("is_default", &ConfigValue::is_default)
      .def_readonly("is_auto", &ConfigValue::is_auto)
      .def_readonly("fallback", &ConfigValue::fallback);
  read_only_struct<ParsedConfig>(m, "ParsedConfig", "A configuration and where it comes from.")
      .def_readonly("config", &ParsedConfig::config)
      .def_readonly("values", &ParsedConfig::values)
      .def_readonly("warnings", &ParsedConfig::warnings);
}

// `config` for a program that knows better than the file: the dtype of its model, an optimizer that
// it made itself. Hyperparameters by OptimizerConfig's names.
Config adapt(const Config& config, DType param_dtype, int64_t accumulation_steps,
             const std::optional<std::string>& optimizer, const py::dict& hyperparameters) {
  Config adapted = config;
  adapted.precision.param_dtype = param_dtype;
  adapted.batch.accumulation_steps = accumulation_steps;
  if (!optimizer) return adapted;
  adapted.optimizer = {.type = *optimizer};
  for (const auto& [key, value] : hyperparameters) {
    const auto name = key.cast<std::string>();
    OptimizerConfig& rule = adapted.optimizer;
    if (name == "beta1") {
      rule.beta1 = value.cast<double>();
    } else if (name == "beta2") {
      rule.beta2 = value.cast<double>();
    } else if (name == "eps") {
      rule.eps = value.cast<float>();
    } else if (name == "adam_w_mode") {
      rule.adam_w_mode = value.cast<bool>();
    } else if (name == "bias_correction") {
      rule.bias_correction = value.cast<bool>();
    } else if (name == "eps_inside_sqrt") {
      rule.eps_inside_sqrt = value.cast<bool>();
    } else if (name == "max_coeff") {
      rule.max_coeff = value.cast<float>();
    } else if (name == "min_coeff") {
      rule.min_coeff = value.cast<float>();
    } else {
      fail<InternalError>("hyperparameter '{}' has no place in OptimizerConfig", name);
    }
  }
  return adapted;
}

void register_elasticity(py::module_& m) {
  read_only_struct<Elasticity>(m, "Elasticity", "The section elasticity.")
      .def_readonly("enabled", &Elasticity::enabled)
      .def_readonly("max_train_batch_size", &Elasticity::max_train_batch_size)
      .def_readonly("micro_batch_sizes", &Elasticity::micro_batch_sizes)
      .def_readonly("min_gpus", &Elasticity::min_gpus)
      .def_readonly("max_gpus", &Elasticity::max_gpus)
      .def_readonly("num_gpus_per_node", &Elasticity::num_gpus_per_node)
      .def_readonly("model_parallel_size", &Elasticity::model_parallel_size)
      .def_readonly("prefer_larger_batch", &Elasticity::prefer_larger_batch)
      .def_readonly("version", &Elasticity::version);
  read_only_struct<ElasticBatch>(m, "ElasticBatch", "What the rules of elasticity give.")
      .def_readonly("train_batch_size", &ElasticBatch::train_batch_size)
      .def_readonly("world_sizes", &ElasticBatch::world_sizes)
      .def_readonly("micro_batch_size", &ElasticBatch::micro_batch_size);
  m.def(
      "elasticity_of", [](const ParsedConfig& parsed) { return elasticity_of(parsed); },
      "parsed"_a);
  m.def("check_scheduler", &check_scheduler, "elasticity"_a);
  m.def("elastic_batch", &elastic_batch, "elasticity"_a, "world_size"_a);
}

}  // namespace

void register_config(py::module_& m) {
  m.def("adapt_config", &adapt, "config"_a, "param_dtype"_a, "accumulation_steps"_a,
        "optimizer"_a = py::none(), "hyperparameters"_a = py::dict(),
        "A configuration for a program that brings its own model dtype and optimizer.");
  register_batch(m);
  register_precision(m);
  register_optimizer(m);
  register_sections(m);
  register_whole(m);
  m.def(
      "parse_config",
      [](std::string_view json, std::string source) {
        return parse_config_for(ConfigReader::pytorch, json, std::move(source));
      },
      "json"_a, "source"_a = "<string>");
  m.def(
      "load_config",
      [](const std::string& path) { return load_config_for(ConfigReader::pytorch, path); },
      "path"_a);
  m.def("plain_config_json", &plain_config_json, "path"_a);
  m.def(
      "resolve_auto",
      [](ParsedConfig parsed, int world_size, int64_t hidden_size, int64_t total_steps,
         std::optional<int64_t> warmup_steps) {
        resolve_auto(parsed, {world_size, hidden_size, total_steps, warmup_steps});
        return parsed;
      },
      "parsed"_a, py::kw_only(), "world_size"_a = 0, "hidden_size"_a = 0, "total_steps"_a = 0,
      "warmup_steps"_a = std::nullopt);
  m.def("resolve_batch", &resolve_batch, "given"_a, "world_size"_a);
  m.def("batch_for", &batch_for, "parsed"_a, "world_size"_a);
  register_elasticity(m);
  m.def(
      "nearest_name",
      [](const std::string& name, const std::vector<std::string>& candidates) {
        return nearest_name(name, candidates);
      },
      "name"_a, "candidates"_a,
      "The candidate that is nearest to `name`; empty when none is near.");
  m.def("printable", &printable_lines, "text"_a,
        "The text with control characters escaped, but for line breaks and tabs.");
  m.def("config_schema", &json_schema);
}

void register_lr_schedule(py::module_& m) {
  py::class_<LrSchedule>(m, "LrSchedule", "Learning rates as a function of applied steps.")
      .def(
          "values",
          [](const LrSchedule& self, int64_t applied_steps, int group) {
            const ScheduledValues values = self.values(applied_steps, group);
            std::optional<std::pair<double, double>> betas;
            if (values.betas) betas.emplace(values.betas->beta1, values.betas->beta2);
            return std::pair(values.lr, betas);
          },
          "applied_steps"_a, "group"_a, "(lr, betas or None) for the step after `applied_steps`.")
      .def("last_batch_iteration", &LrSchedule::last_batch_iteration, "applied_steps"_a);
  m.def(
      "make_lr_schedule",
      [](const Config& config, std::vector<double> base_lrs) {
        return make_lr_schedule(config.scheduler, std::move(base_lrs));
      },
      "config"_a, "base_lrs"_a, "The schedule of the configuration's scheduler block.");
}

}  // namespace zerorun
