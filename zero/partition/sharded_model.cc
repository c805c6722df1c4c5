#include "zero/partition/sharded_model.h"

#include <algorithm>

namespace zerorun {

namespace {

size_t count_groups(std::span<const ParameterSpec> parameters) {
  size_t groups = 1;
  for (const ParameterSpec& parameter : parameters) {
    groups = std::max(groups, static_cast<size_t>(parameter.group) + 1);
  }
  return groups;
}

}  // namespace

ShardedModel::ShardedModel(const Config& config, std::span<const ParameterSpec> parameters,
                           int world_size, bool computes_on_host)
    : rules(make_optimizers(config.optimizer, config.precision)),
      model(with_rules({parameters.begin(), parameters.end()}, config.optimizer, rules.size() > 1),
            count_groups(parameters)),
      sharding(
          make_sharding(config, model.specs(), rules.front(), world_size, 0, computes_on_host)),
      buckets(make_buckets(sharding, model.numels(), model.modules())),
      bounds_link(config.precision.communication_dtype.has_value()) {}

}  // namespace zerorun
