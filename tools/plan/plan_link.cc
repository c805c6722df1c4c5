#include "tools/plan/plan_link.h"

#include <fmt/format.h>

#include "tools/plan/cluster.h"
#include "tools/plan/step_calls.h"
#include "tools/terminal/byte_size.h"
#include "zero/memory_plan.h"

namespace zerorun {

LinkTraffic plan_link(const Config& config, std::span<const ParameterSpec> specs,
                      const HostLayout& layout) {
  if (layout.hosts() == 1) return {};
  const ShardedModel model(config, specs, layout.world_size, layout.cpu);
  // Bandwidths only affect times, which are not used here.
  const SimulatedCluster cluster{.hosts = layout.hosts(),
                                 .gpus = layout.ranks_per_host,
                                 .cpu = layout.cpu,
                                 .world_size = layout.world_size,
                                 .link = 1,
                                 .nvlink = 1};
  LinkTraffic traffic;
  for (const StepCall& call : step_calls(model, layout.ranks_per_host)) {
    // What a step exchanges becomes parameters.
    const bool gathers = call.op == Collective::all_gather || call.phase == StepCall::Phase::step;
    (gathers ? traffic.parameters : traffic.gradients) += cost_of(call, cluster).link_bytes;
  }
  return traffic;
}

std::string link_table(const Config& config, std::span<const ParameterSpec> specs,
                       const HostLayout& layout) {
  if (layout.hosts() == 1) return {};
  std::string text =
      fmt::format("\n{:<42}{:>13}{:>13}{:>13}\n", "over a host's link in a step, each way",
                  "gradients", "parameters", "sum");
  for (int stage = 0; stage <= 3; ++stage) {
    Config staged = config;
    staged.zero = at_stage(config.zero, stage);
    staged.offload = {};
    const LinkTraffic traffic = plan_link(staged, specs, layout);
    text += fmt::format("{:<42}{:>13}{:>13}{:>13}\n", fmt::format("stage {}", stage),
                        text_of(traffic.gradients), text_of(traffic.parameters),
                        text_of(traffic.gradients + traffic.parameters));
  }
  return text;
}

}  // namespace zerorun
