#include "tools/plan/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "checkpoint/files/layout.h"
#include "checkpoint/format/manifest.h"
#include "tools/terminal/tool.h"
#include "zero/memory_plan.h"
#include "zero/partition/sharding.h"

namespace zerorun {

namespace {

// Calls body(calls that start together) for all calls in their order; most start alone.
template <typename Body>
void for_each_start(std::span<const StepCall> calls, const SimulatedCluster& cluster,
                    const Body& body) {
  while (!calls.empty()) {
    const StepCall& first = calls.front();
    auto end = calls.begin() + 1;
    if (first.cuts != nullptr && !cluster.cpu) {
      end = std::find_if(end, calls.end(),
                         [&](const StepCall& call) { return call.round != first.round; });
    }
    const auto count = static_cast<size_t>(end - calls.begin());
    body(calls.first(count));
    calls = calls.subspan(count);
  }
}

// The cost of a call, or of calls that start together.
CallCost cost_of_calls(std::span<const StepCall> calls, const SimulatedCluster& cluster) {
  return calls.front().cuts != nullptr ? cost_of_exchanges(calls, cluster)
                                       : cost_of(calls.front(), cluster);
}

}  // namespace

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
  const std::vector<StepCall> all = step_calls(model, layout.ranks_per_host);
  for_each_start(all, cluster, [&](std::span<const StepCall> calls) {
    const StepCall& call = calls.front();
    // What a step exchanges becomes parameters.
    const bool gathers = call.op == Collective::all_gather || call.phase == StepCall::Phase::step;
    (gathers ? traffic.parameters : traffic.gradients) += cost_of_calls(calls, cluster).link_bytes;
  });
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

namespace {

// The streams of a rank: computation, reductions, and gathers of sharded parameters.
class Streams {
 public:
  Streams(const SimulatedCluster& cluster, const ShardedModel& model, int64_t tokens)
      : cluster_(cluster),
        model_(model),
        tokens_(tokens),
        overlaps_(*model.sharding.zero.overlap_comm) {}

  // Adds a call, or calls that start together.
  void add(std::span<const StepCall> calls) {
    const StepCall& call = calls.front();
    const CallCost cost = cost_of_calls(calls, cluster_);
    step_.link_bytes += cost.link_bytes;
    step_.link_messages += cost.link_messages;
    step_.near_bytes += cost.near_bytes;
    quantized_ += call.quantized;
    step_.messages += cost.messages;
    step_.communication_s += cost.seconds;
    const bool gathers = call.op == Collective::all_gather && call.phase != StepCall::Phase::step;
    // A gather starts together with the computation before the one that needs it.
    Lane& lane = gathers && !cluster_.cpu ? gathers_ : reductions_;
    send(lane, gathers && overlaps_ ? last_begin_ : computed_, cost);
    if (gathers) needed_ = lane.sent;
    if (!overlaps_) wait_for(sent());
  }
  // Simulates forward (1 pass) or backward (2 passes) of a bucket, after its gather.
  void compute(int bucket, int passes) {
    const int64_t numel = model_.buckets[static_cast<size_t>(bucket)].layout.numel();
    wait_for(needed_);
    last_begin_ = computed_;
    if (cluster_.flops <= 0) return;
    constexpr double kPerPass = 2.0;  // one multiplication and one addition per element and token
    const double seconds = kPerPass * passes * static_cast<double>(numel) *
                           static_cast<double>(tokens_) / cluster_.flops;
    computed_ += seconds;
    step_.compute_s += seconds;
  }
  SimulatedStep finish() {
    wait_for(sent());
    if (cluster_.link_cpu > 0) {
      step_.cores_s = static_cast<double>(step_.link_bytes) / cluster_.link_cpu +
                      static_cast<double>(step_.near_bytes + quantized_) / cluster_.nvlink;
    }
    return step_;
  }

 private:
  // A stream of collectives.
  struct Lane {
    double sent = 0.0;    // time until which it is busy
    bool leaves = false;  // its last collective is between hosts
  };

  void send(Lane& lane, double ready, const CallCost& cost) {
    const bool leaves = cost.link_bytes > 0;
    double begin = std::max(lane.sent, ready);
    if (&lane == &gathers_) {
      if (reductions_.leaves == leaves && reductions_.sent > begin)
        reductions_.sent += cost.seconds;
    } else if (gathers_.leaves == leaves) {
      begin = std::max(begin, gathers_.sent);
    }
    lane = {begin + cost.seconds, leaves};
  }
  double sent() const { return std::max(gathers_.sent, reductions_.sent); }
  void wait_for(double time) {
    step_.exposed_s += std::max(0.0, time - computed_);
    computed_ = std::max(computed_, time);
  }

  const SimulatedCluster& cluster_;
  const ShardedModel& model_;
  const int64_t tokens_;
  const bool overlaps_;
  SimulatedStep step_;
  int64_t quantized_ = 0;  // as in StepCall
  Lane gathers_;           // not used on CPU ranks, whose gathers are in order with reductions
  Lane reductions_;
  double computed_ = 0.0;  // time until which the stream of computation is busy
  double needed_ = 0.0;    // time at which the last gather is complete
  double last_begin_ = 0.0;
};

SimulatedStep simulate(const ShardedModel& model, const SimulatedCluster& cluster, int64_t tokens) {
  const std::vector<StepCall> calls = step_calls(model, cluster.gpus);
  Streams streams(cluster, model, tokens);
  size_t next = 0;
  const auto run = [&](int bucket, StepCall::Phase phase, int64_t micro, bool gathers) {
    for (; next < calls.size(); ++next) {
      const StepCall& call = calls[next];
      if (call.bucket != bucket || call.phase != phase || call.micro_step != micro ||
          (call.op == Collective::all_gather) != gathers) {
        return;
      }
      streams.add({&call, 1});
    }
  };
  const auto count = static_cast<int>(model.buckets.size());
  for (int64_t micro = 0; micro < model.sharding.accumulation_steps; ++micro) {
    for (int bucket = count; bucket-- > 0;) {
      run(bucket, StepCall::Phase::forward, micro, true);
      streams.compute(bucket, 1);
    }
    run(0, StepCall::Phase::backward, micro, true);
    for (int bucket = 0; bucket < count; ++bucket) {
      streams.compute(bucket, 2);
      run(bucket + 1, StepCall::Phase::backward, micro, true);
      run(bucket, StepCall::Phase::backward, micro, false);
    }
  }
  for_each_start(std::span(calls).subspan(next), cluster,
                 [&](std::span<const StepCall> together) { streams.add(together); });
  return streams.finish();
}

std::string text_of_seconds(double seconds) {
  return seconds >= 1 ? fmt::format("{:.2f} s", seconds) : fmt::format("{:.2f} ms", 1e3 * seconds);
}

std::string growth(const ShardedModel& model, const SimulatedCluster& cluster) {
  int64_t padded = 0;
  int64_t numel = 0;
  for (const Bucket& bucket : model.buckets) {
    padded += bucket.layout.padded_numel();
    numel += bucket.layout.numel();
  }
  const int64_t ranks = cluster.ranks();
  return fmt::format(
      "\nwhat grows with {} ranks\n"
      "  padding of shards       {:.2f} % of the parameters\n"
      "  manifest of a save      {}, of {} files\n"
      "  rendezvous              {} values set in rank 0's store, which each rank reads as one "
      "list\n",
      ranks, 100.0 * static_cast<double>(padded - numel) / static_cast<double>(numel),
      text_of(plan_manifest(model)), ranks, ranks);
}

struct Choice {
  std::string name;
  SimulatedStep step;
  int64_t memory = 0;
};

std::string table(std::vector<Choice> choices, std::optional<int64_t> device_memory) {
  std::erase_if(choices, [&](const Choice& choice) {
    return device_memory && choice.memory > *device_memory;
  });
  if (choices.empty()) return "\nno stage and shard group fits the GPUs' memory\n";
  std::ranges::stable_sort(choices, [](const Choice& a, const Choice& b) {
    return a.step.seconds() < b.step.seconds();
  });
  constexpr size_t kMax = 12;
  std::string text = fmt::format("\n{:<42}{:>13}{:>13}{:>13}{:>13}\n", "fastest first",
                                 "states/rank", "link/host", "exposed", "step");
  for (size_t i = 0; i < std::min(kMax, choices.size()); ++i) {
    const Choice& choice = choices[i];
    text += fmt::format("{:<42}{:>13}{:>13}{:>13}{:>13}\n", choice.name, text_of(choice.memory),
                        text_of(choice.step.link_bytes), text_of_seconds(choice.step.exposed_s),
                        text_of_seconds(choice.step.seconds()));
  }
  if (choices.size() > kMax) text += fmt::format("and {} slower ones\n", choices.size() - kMax);
  return text;
}

// Returns the sizes of shard groups to evaluate: equal parts of a host, whole hosts, and equal
// parts of all hosts.
std::vector<int64_t> group_sizes(const SimulatedCluster& cluster) {
  const int64_t ranks = cluster.ranks();
  std::vector<int64_t> sizes;
  for (int64_t size = 1; size <= ranks; size += size < cluster.gpus ? 1 : cluster.gpus) {
    const bool fits = size >= cluster.gpus || cluster.gpus % size == 0;
    if (fits && ranks % size == 0) sizes.push_back(size);
  }
  if (sizes.empty() || sizes.back() != ranks) sizes.push_back(ranks);
  return sizes;
}

// Returns the configuration with only those quantization settings that shard groups of this size
// support.
ZeroConfig fewer_bits(const ZeroConfig& zero, int64_t group, const SimulatedCluster& cluster) {
  ZeroConfig fewer = group > cluster.gpus ? zero : without_zeropp(zero);
  fewer.hpz_partition_size = 1;
  if (group < cluster.ranks()) {
    fewer.quantized_gradients = false;
    fewer.loco.reset();
  }
  return fewer;
}

}  // namespace

SimulatedStep simulate_step(const Config& config, std::span<const ParameterSpec> specs,
                            const SimulatedCluster& cluster, int64_t tokens) {
  const ShardedModel model(config, specs, cluster.ranks(), cluster.cpu);
  return simulate(model, cluster, tokens);
}

std::string simulation_report(const Config& config, std::span<const ParameterSpec> specs,
                              const SimulatedCluster& cluster, int64_t tokens,
                              std::optional<int64_t> device_memory) {
  Config own = config;
  resolve_groups(own.zero, cluster.ranks(), cluster.gpus);
  const ShardedModel model(own, specs, cluster.ranks(), cluster.cpu);
  const SimulatedStep step = simulate(model, cluster, tokens);
  std::string text = fmt::format(
      "\na step on {} hosts of {} {}\n"
      "  over a host's link      {} each way in {} messages\n"
      "  a rank within its host  {}; {} messages in all\n"
      "  computation             {}{}\n"
      "  communication           {}, {} of it exposed\n",
      cluster.hosts, cluster.gpus, cluster.cpu ? "CPU ranks" : "GPUs", text_of(step.link_bytes),
      step.link_messages, text_of(step.near_bytes), step.messages, text_of_seconds(step.compute_s),
      cluster.flops > 0 ? "" : " (give --tflops, --micro_batch and --seq_len)",
      text_of_seconds(step.communication_s), text_of_seconds(step.exposed_s));
  if (cluster.link_cpu > 0) {
    text += fmt::format("  cores communicating     {}\n", text_of_seconds(step.cores_s));
  }
  text += growth(model, cluster);
  const HostLayout layout{cluster.ranks(), cluster.gpus, cluster.cpu};
  std::vector<Choice> choices;
  const auto look_at = [&](int stage, int64_t group, bool hpz) {
    Config setting = own;
    setting.zero = at_stage(fewer_bits(own.zero, group, cluster), stage);
    setting.zero.shard_group_size = group == cluster.ranks() ? 0 : group;
    std::string name = fmt::format("stage {}, groups of {}", stage, group);
    if (setting.zero.quantized_weights) name += ", qwZ";
    if (setting.zero.quantized_gradients) name += ", qgZ";
    if (hpz) {
      setting.zero.hpz_partition_size = cluster.gpus;
      name += fmt::format(", hpZ of {}", cluster.gpus);
    }
    const ShardedModel sharded(setting, specs, cluster.ranks(), cluster.cpu);
    choices.push_back(
        {name, simulate(sharded, cluster, tokens), plan_memory(sharded, layout).device()});
  };
  for (int stage = 1; stage <= 3; ++stage) {
    for (const int64_t group : group_sizes(cluster)) {
      look_at(stage, group, false);
      if (stage == 3 && cluster.gpus > 1 && group > cluster.gpus) look_at(stage, group, true);
    }
  }
  return text + table(std::move(choices), device_memory);
}

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
