#include "tools/plan/plan_manifest.h"

#include <fmt/format.h>

#include "checkpoint/files/layout.h"
#include "checkpoint/format/manifest.h"

namespace zerorun {

int64_t plan_manifest(const ShardedModel& model) {
  const Sharding& sharding = model.sharding;
  Manifest manifest = describe_model(model.model.specs(), sharding.precision.param_dtype,
                                     sharding.precision.master_dtype(), [&](ParameterId id) {
                                       const ParameterSpec& spec =
                                           model.model.specs()[static_cast<size_t>(id)];
                                       return model.rules[spec.use_muon ? 1 : 0].states();
                                     });
  // Parameters with and without weight decay, as trainers group them.
  manifest.groups = {ParameterGroup{}, ParameterGroup{}};
  for (int rank = 0; rank < sharding.place.world_size; ++rank) {
    manifest.shards.push_back({.name = shard_name(rank, ~uint64_t{0}),
                               .nbytes = 100'000'000,
                               .header_nbytes = 1 << 12,
                               .header_hash = ~uint64_t{0}});
  }
  return static_cast<int64_t>(encode_manifest(manifest).size());
}

}  // namespace zerorun
