#include "config/elasticity.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "config/derive.h"
#include "config/env.h"
#include "core/check.h"

namespace zerorun {

namespace {

constexpr double kHostRules = 0.2;  // version of the rules that count whole hosts

// Numbers with more divisors than all smaller ones (OEIS A002182).
constexpr auto kHighlyComposite = std::to_array<int64_t>(
    {1,      2,      4,      6,      12,     24,     36,     48,    60,    120,
     180,    240,    360,    720,    840,    1260,   1680,   2520,  5040,  7560,
     10080,  15120,  20160,  25200,  27720,  45360,  50400,  55440, 83160, 110880,
     166320, 221760, 277200, 332640, 498960, 554400, 665280, 720720});

using Find = std::function<const JsonNode*(std::string_view name)>;

Elasticity read_section(const Find& find) {
  Elasticity section;
  const auto read = [&](std::string_view name, auto& out) {
    if (const JsonNode* value = find(name)) read_value(*value, out);
  };
  read("enabled", section.enabled);
  read("max_train_batch_size", section.max_train_batch_size);
  read("min_gpus", section.min_gpus);
  read("max_gpus", section.max_gpus);
  read("num_gpus_per_node", section.num_gpus_per_node);
  read("model_parallel_size", section.model_parallel_size);
  read("prefer_larger_batch", section.prefer_larger_batch);
  read("version", section.version);
  if (const JsonNode* sizes = find("micro_batch_sizes")) {
    section.micro_batch_sizes.clear();
    for (const JsonNode& size : sizes->children) {
      section.micro_batch_sizes.push_back(as_integer(size).value_or(0));
    }
  }
  return section;
}

int64_t least_micro_batch(const Elasticity& section) {
  return *std::ranges::min_element(section.micro_batch_sizes);
}

// Returns the batch sizes to choose from: each micro-batch size, and the least common multiple of
// all, times the largest highly composite number that the limit allows.
std::set<int64_t> candidates(const std::vector<int64_t>& micro_batches, int64_t limit) {
  std::vector<int64_t> bases = micro_batches;
  int64_t common = 1;
  for (const int64_t size : micro_batches) {
    // both are within the limit, so that the product fits into 64 bits
    common = std::lcm(common, size);
    if (common > limit) break;
  }
  if (common <= limit) bases.push_back(common);
  std::set<int64_t> batches;
  for (const int64_t base : bases) {
    batches.insert(base * *std::prev(std::ranges::upper_bound(kHighlyComposite, limit / base)));
  }
  return batches;
}

// Returns the numbers of ranks from `least` to `most` that divide a batch into whole micro-batches.
std::set<int64_t> divisors(int64_t batch, const std::vector<int64_t>& micro_batches, int64_t least,
                           int64_t most) {
  std::set<int64_t> counts;
  const auto add = [&](int64_t count) {
    if (count >= least && count <= most) counts.insert(count);
  };
  for (const int64_t size : micro_batches) {
    if (batch % size != 0) continue;
    const int64_t micro_steps = batch / size;
    for (int64_t count = 1; count * count <= micro_steps; ++count) {
      if (micro_steps % count != 0) continue;
      add(count);
      add(micro_steps / count);
    }
  }
  return counts;
}

// Version 0.1: returns the candidate that is divisible by the most numbers of ranks (or hosts).
ElasticBatch most_divisible(const Elasticity& section, int64_t limit, int64_t least, int64_t most) {
  const int64_t smallest = least_micro_batch(section);
  if (*std::ranges::max_element(section.micro_batch_sizes) > limit) {
    fail<ConfigError>(
        "elasticity: a micro-batch of {} is more than the {} samples that max_train_batch_size "
        "leaves each data-parallel rank of a host",
        *std::ranges::max_element(section.micro_batch_sizes), limit);
  }
  if (most == 0) most = limit / smallest;
  ElasticBatch best{.train_batch_size = smallest};
  for (const int64_t batch : candidates(section.micro_batch_sizes, limit)) {
    const auto counts =
        divisors(batch, section.micro_batch_sizes, std::max<int64_t>(least, 1), most);
    const bool is_preferred =
        section.prefer_larger_batch ? batch > best.train_batch_size : batch < best.train_batch_size;
    if (counts.size() > best.world_sizes.size() ||
        (counts.size() == best.world_sizes.size() && is_preferred)) {
      best.train_batch_size = batch;
      best.world_sizes.assign(counts.begin(), counts.end());
    }
  }
  return best;
}

// Version 0.2 counts whole hosts. For a number of ranks that does not divide the batch size,
// returns the divisible batch size that is nearest to the limit.
ElasticBatch by_hosts(const Elasticity& section, int64_t world_size) {
  const int64_t per_host = section.num_gpus_per_node / section.model_parallel_size;
  ElasticBatch batch = most_divisible(section, section.max_train_batch_size / per_host,
                                      section.min_gpus / section.num_gpus_per_node,
                                      section.max_gpus / section.num_gpus_per_node);
  batch.train_batch_size *= per_host;
  for (int64_t& count : batch.world_sizes) count *= per_host;
  const int64_t data_size = world_size / section.model_parallel_size;
  if (world_size == 0 || std::ranges::binary_search(batch.world_sizes, data_size)) return batch;
  if (world_size % section.model_parallel_size != 0) {
    fail<ConfigError>("elasticity: got {} ranks, expected a multiple of model_parallel_size, {}",
                      world_size, section.model_parallel_size);
  }
  std::optional<int64_t> chosen;
  for (const int64_t size : section.micro_batch_sizes) {
    const int64_t unit = size * data_size;
    const int64_t total = section.max_train_batch_size / unit * unit;
    if (total == 0) continue;
    if (!chosen || (section.prefer_larger_batch ? total > *chosen : total < *chosen)) {
      chosen = total;
    }
  }
  if (!chosen) {
    fail<ConfigError>(
        "elasticity: got {} ranks, whose micro-batches of {} are more samples than "
        "max_train_batch_size, {}",
        world_size, least_micro_batch(section), section.max_train_batch_size);
  }
  return {.train_batch_size = *chosen, .world_sizes = {data_size}};
}

// "1, 2, 3, 4, ..., 120"
std::string listed(const std::vector<int64_t>& counts) {
  constexpr size_t kMaxListed = 12;
  if (counts.empty()) return "no number of";
  if (counts.size() <= kMaxListed) return fmt::format("{}", fmt::join(counts, ", "));
  return fmt::format("{}, ..., {}",
                     fmt::join(counts.begin(), counts.begin() + kMaxListed - 1, ", "),
                     counts.back());
}

[[noreturn]] void fail_world_size(const ElasticBatch& batch, int world_size) {
  const auto above = std::ranges::upper_bound(batch.world_sizes, world_size);
  std::vector<int64_t> nearest;
  if (above != batch.world_sizes.begin()) nearest.push_back(*std::prev(above));
  if (above != batch.world_sizes.end()) nearest.push_back(*above);
  fail<ConfigError>("elasticity's batch of {} samples suits {} ranks, got {}{}",
                    batch.train_batch_size, listed(batch.world_sizes), world_size,
                    nearest.empty() ? "; widen min_gpus and max_gpus"
                                    : fmt::format("; nearest: {}", fmt::join(nearest, " or ")));
}

// Compares the batch sizes that the program has set with those that are computed.
void check_program(const BatchConfig& given, const BatchConfig& computed) {
  const auto check = [](std::string_view name, int64_t own, int64_t expected) {
    if (own == 0 || own == expected) return;
    fail<ConfigError>(
        "the program sets {} to {}, but elasticity computes {}; leave one of the two out", name,
        own, expected);
  };
  check(kBatchKeys[0], given.train_batch_size, computed.train_batch_size);
  check(kBatchKeys[1], given.micro_batch_size, computed.micro_batch_size);
  check(kBatchKeys[2], given.accumulation_steps, computed.accumulation_steps);
}

}  // namespace

void check_scheduler(const Elasticity& section) {
  constexpr const char* kVariable = "DEEPSPEED_ELASTICITY_CONFIG";
  const std::optional<std::string> text = read_environment(kVariable);
  if (!text) return;
  const Elasticity theirs =
      elasticity_of(parse_config(fmt::format(R"({{"elasticity": {}}})", *text), kVariable));
  const auto check = [&](std::string_view key, const auto& own, const auto& other) {
    if (own == other) return;
    fail<ConfigError>("elasticity: {} is {}, but {}, by which the scheduler counts, has {}", key,
                      own, kVariable, other);
  };
  check("max_train_batch_size", section.max_train_batch_size, theirs.max_train_batch_size);
  check("micro_batch_sizes", fmt::format("{}", section.micro_batch_sizes),
        fmt::format("{}", theirs.micro_batch_sizes));
  check("version", section.version, theirs.version);
}

Elasticity elasticity_of(const GivenKeys& keys) {
  return read_section([&](std::string_view name) {
    return given_value(keys, fmt::format("/elasticity/{}", name));
  });
}

Elasticity elasticity_of(const ParsedConfig& parsed) {
  constexpr std::string_view kBlock = "/elasticity/";
  std::vector<JsonNode> nodes;  // the keys of the nodes are the names
  for (const ConfigValue& value : parsed.values) {
    if (!value.pointer.starts_with(kBlock) || value.value == "null") continue;
    ConfigProblems problems(value.pointer);
    std::optional<JsonNode> node = read_json(value.value, problems);
    ZR_CHECK(node, "{} is {}, which cannot be read", value.pointer, value.value);
    node->key = value.pointer.substr(kBlock.size());
    nodes.push_back(std::move(*node));
  }
  return read_section([&](std::string_view name) {
    const auto found = std::ranges::find(nodes, name, &JsonNode::key);
    return found == nodes.end() ? nullptr : &*found;
  });
}

void check_elasticity(const GivenKeys& keys, ConfigProblems& problems) {
  const Elasticity section = elasticity_of(keys);
  if (!section.enabled) return;
  const auto add = [&](std::string_view name, const std::string& text) {
    const JsonNode* place = given_value(keys, name);
    problems.add(name, (place == nullptr ? given_value(keys, "/elasticity/enabled") : place)->where,
                 "{}", text);
  };
  for (const char* name : {"/elasticity/max_train_batch_size", "/elasticity/micro_batch_sizes"}) {
    if (given_value(keys, name) != nullptr || is_invalid(keys, name)) continue;
    add(name, "missing; /elasticity/enabled needs it");
  }
  const std::vector<int64_t>& sizes = section.micro_batch_sizes;
  if (sizes.empty()) {
    add("/elasticity/micro_batch_sizes", "got [], expected at least one micro-batch");
  } else if (*std::ranges::max_element(sizes) > section.max_train_batch_size) {
    add("/elasticity/micro_batch_sizes",
        fmt::format("{} is more than max_train_batch_size, {}", *std::ranges::max_element(sizes),
                    section.max_train_batch_size));
  }
  if (section.min_gpus > section.max_gpus) {
    add("/elasticity/min_gpus",
        fmt::format("{} is more than max_gpus, {}", section.min_gpus, section.max_gpus));
  }
  if (section.version != 0.1 && section.version != kHostRules) {
    add("/elasticity/version", fmt::format("got {}, expected 0.1 or 0.2", section.version));
  }
  const int64_t parts = section.model_parallel_size;
  if (parts > 1 && !counts_hosts(section)) {
    add("/elasticity/model_parallel_size", fmt::format("{} needs version 0.2", parts));
  } else if (section.num_gpus_per_node % parts != 0) {
    add("/elasticity/num_gpus_per_node",
        fmt::format("{} is not a multiple of model_parallel_size, {}", section.num_gpus_per_node,
                    parts));
  }
  const JsonNode* ignores = given_value(keys, "/elasticity/ignore_non_elastic_batch_info");
  for (const std::string_view key : kBatchKeys) {
    if (given_value(keys, key) == nullptr || (ignores != nullptr && ignores->boolean)) continue;
    add(key,
        "contradicts /elasticity/enabled, which computes it; remove this key, or set "
        "/elasticity/ignore_non_elastic_batch_info to true");
  }
}

bool counts_hosts(const Elasticity& elasticity) { return elasticity.version == kHostRules; }

ElasticBatch elastic_batch(const Elasticity& elasticity, int64_t world_size) {
  ElasticBatch batch = counts_hosts(elasticity)
                           ? by_hosts(elasticity, world_size)
                           : most_divisible(elasticity, elasticity.max_train_batch_size,
                                            elasticity.min_gpus, elasticity.max_gpus);
  for (const int64_t size : elasticity.micro_batch_sizes) {
    if (world_size > 0 && batch.train_batch_size / world_size % size == 0) {
      batch.micro_batch_size = std::max(batch.micro_batch_size, size);
    }
  }
  return batch;
}

BatchConfig batch_for(const ParsedConfig& parsed, int world_size) {
  const BatchConfig& given = parsed.config.batch;
  const Elasticity section = elasticity_of(parsed);
  if (!section.enabled) return resolve_batch(given, world_size);
  check_scheduler(section);
  const ElasticBatch batch = elastic_batch(section, world_size);
  if (!std::ranges::binary_search(batch.world_sizes, world_size))
    fail_world_size(batch, world_size);
  ZR_CHECK(batch.micro_batch_size > 0, "no micro-batch for {} ranks", world_size);
  const BatchConfig sizes = {batch.train_batch_size, batch.micro_batch_size,
                             batch.train_batch_size / (batch.micro_batch_size * world_size)};
  check_program(given, sizes);
  return resolve_batch(sizes, world_size);
}

std::string describe_elasticity(const ParsedConfig& parsed) {
  const Elasticity section = elasticity_of(parsed);
  const ElasticBatch batch = elastic_batch(section, 0);
  return fmt::format("elastic batch: {} samples on {} ranks{}", batch.train_batch_size,
                     listed(batch.world_sizes),
                     counts_hosts(section) ? "; another one on other numbers" : "");
}

}  // namespace zerorun
