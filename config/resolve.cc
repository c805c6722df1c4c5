#include "config/resolve.h"

#include <algorithm>
#include <array>

#include "config/key_table.h"
#include "config/problems.h"
#include "config/schedule_check.h"
#include "core/check.h"

namespace zerorun {

namespace {

constexpr std::string_view kTrainSteps = "/zerorun/train/steps";

// Where a key's "auto" comes from. Bucket sizes as in transformers 5.23,
// integrations/deepspeed.py, trainer_config_finalize; without the model they keep their default.
struct AutoRule {
  std::string_view pointer;
  std::optional<int64_t> (*value)(const RunFacts& facts);
  bool has_default;
};

std::optional<int64_t> known(int64_t value) {
  return value > 0 ? std::optional(value) : std::nullopt;
}

int64_t square(int64_t value) { return value * value; }

constexpr auto kRules = std::to_array<AutoRule>({
    {"/zero_optimization/reduce_bucket_size",
     [](const RunFacts& facts) { return known(square(facts.hidden_size)); }, true},
    {"/zero_optimization/stage3_prefetch_bucket_size",
     [](const RunFacts& facts) {
       return known(static_cast<int64_t>(0.9 * static_cast<double>(square(facts.hidden_size))));
     },
     true},
    {"/zero_optimization/stage3_param_persistence_threshold",
     [](const RunFacts& facts) { return known(10 * facts.hidden_size); }, true},
    {"/scheduler/params/total_num_steps",
     [](const RunFacts& facts) { return known(facts.total_steps); }, false},
    {"/scheduler/params/warmup_num_steps",
     [](const RunFacts& facts) {
       return facts.warmup_steps ? known(std::max<int64_t>(*facts.warmup_steps, 1)) : std::nullopt;
     },
     false},
});

void set_integer(ParsedConfig& parsed, ConfigValue& value, int64_t integer) {
  const KeySpec* spec = key_table().find(value.pointer);
  ZR_CHECK(spec != nullptr && spec->binding.set != nullptr, "{} cannot be set", value.pointer);
  JsonNode node;
  node.kind = JsonNode::Kind::integer;
  node.integer = integer;
  node.number = static_cast<double>(integer);
  spec->binding.set(parsed.config, node);
  value.value = std::to_string(integer);
}

// The steps of the bundled train program, where the file says them.
RunFacts with_train_steps(const ParsedConfig& parsed, RunFacts facts) {
  for (const ConfigValue& value : parsed.values) {
    if (facts.total_steps == 0 && value.pointer == kTrainSteps && !value.is_default) {
      facts.total_steps = std::stoll(value.value);
    }
  }
  return facts;
}

void resolve_batch_sizes(ParsedConfig& parsed, int world_size) {
  BatchConfig& batch = parsed.config.batch;
  if (world_size == 0 || (batch.train_batch_size == 0 && batch.micro_batch_size == 0)) return;
  batch = resolve_batch(batch, world_size);
  for (ConfigValue& value : parsed.values) {
    int64_t resolved = 0;
    if (value.pointer == "/train_batch_size") resolved = batch.train_batch_size;
    if (value.pointer == "/train_micro_batch_size_per_gpu") resolved = batch.micro_batch_size;
    if (value.pointer == "/gradient_accumulation_steps") resolved = batch.accumulation_steps;
    if (resolved != 0) value.value = std::to_string(resolved);
  }
}

template <typename Visit>
void for_each_auto(ParsedConfig& parsed, const Visit& visit) {
  for (ConfigValue& value : parsed.values) {
    if (!value.is_auto) continue;
    for (const AutoRule& rule : kRules) {
      if (rule.pointer == value.pointer) visit(value, rule);
    }
  }
}

}  // namespace

void mark_unresolved(ParsedConfig& parsed) {
  for_each_auto(parsed, [](ConfigValue& value, const AutoRule& rule) {
    if (!rule.has_default) value.value = R"("auto")";
  });
}

std::vector<std::string> resolve_known(ParsedConfig& parsed, const RunFacts& given) {
  constexpr int64_t kMaxHiddenSize = int64_t{1} << 31;  // its square fits
  if (given.hidden_size < 0 || given.hidden_size > kMaxHiddenSize) {
    fail<ConfigError>("hidden size: got {}, expected 0 (not known) to {}", given.hidden_size,
                      kMaxHiddenSize);
  }
  const RunFacts facts = with_train_steps(parsed, given);
  std::vector<std::string> unresolved;
  for_each_auto(parsed, [&](ConfigValue& value, const AutoRule& rule) {
    if (const std::optional<int64_t> integer = rule.value(facts)) {
      set_integer(parsed, value, *integer);
    } else if (!rule.has_default) {
      unresolved.push_back(value.pointer);
    }
  });
  resolve_batch_sizes(parsed, facts.world_size);
  return unresolved;
}

void resolve_auto(ParsedConfig& parsed, const RunFacts& facts) {
  ConfigProblems problems(parsed.config.source);
  for (const std::string& pointer : resolve_known(parsed, facts)) {
    problems.add(pointer, {}, R"(got "auto", which this program cannot resolve; give the number)");
  }
  for (const KeyProblem& problem : schedule_problems(parsed.config.scheduler)) {
    problems.add(problem.pointer, {}, "{}", problem.text);
  }
  problems.throw_if_any();
}

}  // namespace zerorun
