#include "train/run/run_description.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "comm/collective_limits.h"
#include "os/process_identity.h"
#include "train/model/parameters.h"
#include "zero/memory_plan.h"
#include "zerorun/version.h"

namespace zerorun::train {

namespace {

using OrderedJson = nlohmann::ordered_json;

// Returns [pointer, value, whether it is the default] of each setting of the file, after applying
// the command line and the defaults of this program.
OrderedJson settings_of(const RunSetup& setup) {
  const Config& config = setup.config;
  const PrecisionConfig& precision = config.precision;
  const OrderedJson decided = {
      {"/train_micro_batch_size_per_gpu", config.batch.micro_batch_size},
      {"/gradient_accumulation_steps", config.batch.accumulation_steps},
      {"/bf16/enabled", precision.param_dtype == DType::bf16},
      {"/fp16/enabled", precision.param_dtype == DType::fp16},
      {"/zero_optimization/stage", config.zero.stage},
      {"/optimizer/type", config.optimizer.type},
      {"/optimizer/params/lr", std::stod(fmt::format("{}", config.optimizer.lr))},
      {"/scheduler/type", config.scheduler.type},
  };
  OrderedJson settings = OrderedJson::array();
  for (const auto& [pointer, value] : decided.items()) {
    const auto given = std::ranges::find(setup.settings, pointer, &ConfigValue::pointer);
    const bool is_default = given != setup.settings.end() && given->is_default &&
                            OrderedJson::parse(given->value) == value;
    settings.push_back({pointer, value, is_default});
  }
  for (const ConfigValue& given : setup.settings) {
    if (decided.contains(given.pointer)) continue;
    settings.push_back({given.pointer, OrderedJson::parse(given.value), given.is_default});
  }
  return settings;
}

OrderedJson plan_of(const RunSetup& setup, Communicator& comm, Device& device) {
  const HostLayout layout{comm.world_size(), comm.local_world_size(), device.is_host()};
  const auto specs = parameter_specs(setup.model);
  const auto planned = plan_memory(setup.config, specs, layout).by_category();
  OrderedJson plan = OrderedJson::object();
  for (size_t i = 0; i < planned.size(); ++i) {
    if (planned[i] > 0) plan[name_of(static_cast<MemoryCategory>(i))] = planned[i];
  }
  return plan;
}

OrderedJson limits_of(Communicator& comm, Device& device) {
  const auto measured = measure_collectives(comm, device);
  OrderedJson limits = OrderedJson::object();
  for (size_t i = 0; i < measured.size(); ++i) {
    if (measured[i] > 0.0) limits[name_of(static_cast<Collective>(i))] = measured[i];
  }
  return limits;
}

}  // namespace

OrderedJson run_description(const RunSetup& setup, Communicator& comm, Device& device) {
  return {
      {"config", settings_of(setup)},
      {"environment",
       {{"zerorun", ZERORUN_VERSION},
        {"program", "train"},
        {"compiler", __VERSION__},
        {"host", host_name()},
        {"device", device.name()},
        {"transport", comm.transport()},
        {"data", setup.data_description}}},
      {"parameters", parameter_count(setup.model)},
      {"plan", plan_of(setup, comm, device)},
      {"limits", limits_of(comm, device)},
  };
}

}  // namespace zerorun::train
