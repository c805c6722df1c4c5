#include "config/docs/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "config/derive.h"
#include "config/elasticity.h"
#include "config/json/reader.h"
#include "config/keys/key_table.h"
#include "core/check.h"
#include "core/printable.h"

namespace zerorun {

namespace {

constexpr std::string_view kAuto = R"("auto")";
constexpr size_t kMaxListedRanks = 12;
constexpr int64_t kMaxRanks = 1 << 20;  // larger numbers of ranks are not tried

bool is_batch_given(const BatchConfig& batch) {
  return batch.train_batch_size != 0 || batch.micro_batch_size != 0;
}

// Whether all three sizes are given, which suit one number of ranks only.
bool fixes_ranks(const BatchConfig& batch) {
  return batch.train_batch_size != 0 && batch.micro_batch_size != 0 &&
         batch.accumulation_steps != 0;
}

// Returns the largest number of ranks that a train_batch_size suits. Throws ConfigError if there is
// none.
int64_t most_ranks(const ParsedConfig& parsed) {
  const BatchConfig& given = parsed.config.batch;
  const int64_t micro = std::max<int64_t>(given.micro_batch_size, 1);
  const int64_t steps = std::max<int64_t>(given.accumulation_steps, 1);
  int64_t samples = 0;
  if (__builtin_mul_overflow(micro, steps, &samples) || given.train_batch_size % samples != 0) {
    ParsedConfig alone = parsed;
    // throws, since the batch sizes do not match one rank either
    resolve_known(alone, {.world_size = 1});
  }
  return given.train_batch_size / samples;
}

// Returns the possible numbers of ranks: "1, 2, 4", "any number of". Throws ConfigError if there
// are none.
std::string suitable_ranks(const ParsedConfig& parsed) {
  if (parsed.config.batch.train_batch_size == 0) return "any number of";
  const int64_t most = most_ranks(parsed);
  if (fixes_ranks(parsed.config.batch)) return std::to_string(most);
  std::vector<int64_t> ranks;
  const int64_t last = std::min<int64_t>(most, kMaxRanks);
  for (int64_t count = 1; count <= last && ranks.size() < kMaxListedRanks; ++count) {
    if (most % count == 0) ranks.push_back(count);
  }
  return fmt::format("{}{}", fmt::join(ranks, ", "), ranks.back() == most ? "" : ", ...");
}

// Returns the number of data-parallel ranks that the batch sizes leave no choice about; 0 if they
// suit several numbers, or ranks share sequences.
int64_t only_ranks(const ParsedConfig& parsed) {
  if (!fixes_ranks(parsed.config.batch) || elasticity_of(parsed).enabled) return 0;
  for (const ConfigValue& value : parsed.values) {
    if (value.pointer == "/sequence_parallel_size" && !value.is_default) return 0;
  }
  return most_ranks(parsed);
}

// Returns a line about groups that work only if all ranks are on one host, where they have no
// effect. Throws ConfigError for shard groups that the batch sizes' number of ranks cannot form.
std::string describe_groups(const ParsedConfig& parsed) {
  const int64_t ranks = only_ranks(parsed);
  const ZeroConfig& zero = parsed.config.zero;
  if (ranks == 0) return {};
  if (zero.shard_group_size > 0 && ranks % zero.shard_group_size != 0) {
    fail<ConfigError>(
        "{}: /zerorun/shard_group_size (mics_shard_size): got {}, expected a number that divides "
        "{}, the number of ranks that the batch sizes suit",
        parsed.config.source, zero.shard_group_size, ranks);
  }
  if (zero.shard_group_size != 0 || zero.hpz_partition_size <= 1 ||
      ranks % zero.hpz_partition_size == 0) {
    return {};
  }
  return fmt::format(
      "an error on several hosts: /zero_optimization/zero_hpz_partition_size: {} does not divide "
      "{} ranks",
      zero.hpz_partition_size, ranks);
}

// Returns the line about batch sizes. Throws ConfigError if none is given, as zerorun.initialize
// would. Sizes that are "auto" are set by the program; the bundled program has defaults.
std::string describe_batch(const ParsedConfig& parsed) {
  if (elasticity_of(parsed).enabled) return describe_elasticity(parsed);
  if (is_batch_given(parsed.config.batch)) {
    const std::string ranks = suitable_ranks(parsed);
    return fmt::format("batch sizes: suit {} rank{}", ranks, ranks == "1" ? "" : "s");
  }
  for (const ConfigValue& value : parsed.values) {
    if (value.pointer == "/zerorun/train" || value.pointer.starts_with("/zerorun/train/"))
      return {};
    const bool is_size =
        value.pointer == "/train_batch_size" || value.pointer == "/train_micro_batch_size_per_gpu";
    if (is_size && value.is_auto) return "batch sizes: \"auto\", the program has to give them";
  }
  try {
    resolve_batch(parsed.config.batch, 1);
  } catch (const ConfigError& error) {
    fail<ConfigError>("{}: {}, or \"auto\" where a program or `zerorun train` gives it",
                      parsed.config.source, error.what());
  }
  return {};
}

const KeySpec& spec_of(const ConfigValue& value) {
  const KeySpec* spec = key_table().find(value.pointer);
  ZR_CHECK(spec != nullptr, "{} is no configuration key", value.pointer);
  return *spec;
}

// True for a key whose gate is not set, such as a key of an offload block without "device".
bool waits_for_gate(const KeySpec& spec, const std::vector<ConfigValue>& values) {
  const bool may_act = spec.status == KeyStatus::works || spec.status == KeyStatus::pytorch;
  if (!may_act || spec.gate.empty()) return false;
  const std::vector<std::string_view> gates = split_choices(spec.gate);
  return std::ranges::none_of(values, [&](const ConfigValue& one) {
    return one.value != one.fallback && std::ranges::find(gates, one.pointer) != gates.end();
  });
}

// Returns why the value of a key has no effect; "" if it has one.
std::string reason_without_effect(const ConfigValue& value,
                                  const std::vector<ConfigValue>& values) {
  const KeySpec& spec = spec_of(value);
  if (value.is_default) return {};
  if (waits_for_gate(spec, values)) {
    std::vector<std::string> gates;
    for (const std::string_view pointer : split_choices(spec.gate)) {
      const KeySpec* gate = key_table().find(pointer);
      gates.push_back(
          fmt::format("{} is {}", pointer, gate == nullptr ? "not given" : gate->fallback));
    }
    return fmt::format("{}", fmt::join(gates, " and "));
  }
  if (spec.status == KeyStatus::no_effect) return std::string(spec.note);
  if (spec.status == KeyStatus::always_on && value.value == "false") return "always on";
  return {};
}

// A line of JSON.
struct Line {
  size_t depth = 0;
  std::string text;
  std::string comment{};
};

std::string join_lines(const std::vector<Line>& lines) {
  std::string out;
  for (size_t i = 0; i < lines.size(); ++i) {
    const auto& [depth, text, comment] = lines[i];
    const bool is_last = i + 1 == lines.size() || lines[i + 1].text == "}";
    out += fmt::format("{:{}}{}{}{}{}\n", "", depth * 2, text,
                       is_last || text.ends_with('{') ? "" : ",", comment.empty() ? "" : "  // ",
                       comment);
  }
  return out;
}

// The blocks around a key: {"zero_optimization", "offload_param"}.
std::vector<std::string_view> blocks_of(std::string_view pointer) {
  std::vector<std::string_view> blocks;
  for (size_t begin = 1, end = 0; (end = pointer.find('/', begin)) != std::string_view::npos;
       begin = end + 1) {
    blocks.push_back(pointer.substr(begin, end - begin));
  }
  return blocks;
}

std::string comment_of(const ConfigValue& value) {
  if (value.is_auto && value.value == kAuto) return "the program has to give it";
  if (value.is_auto) return "auto";
  if (value.is_default) return value.value == value.fallback ? "" : "inferred";
  return value.fallback == "null" ? "given" : fmt::format("default {}", value.fallback);
}

}  // namespace

std::string check_report(const std::string& path) {
  const ParsedConfig parsed = load_config_for(ConfigReader::pytorch, path);
  std::vector<std::string_view> changed;
  std::vector<std::string_view> left_over;
  std::vector<std::string_view> for_pytorch;
  std::string without_effect;
  for (const ConfigValue& value : parsed.values) {
    if (value.is_auto && value.value == kAuto) left_over.push_back(value.pointer);
    if (value.is_default) continue;
    changed.push_back(value.pointer);
    const KeySpec& spec = spec_of(value);
    if (spec.status == KeyStatus::pytorch && spec.gate.empty()) {
      for_pytorch.push_back(value.pointer);
    }
    const std::string reason = reason_without_effect(value, parsed.values);
    if (!reason.empty()) {
      without_effect += fmt::format("\n  no effect: {}: {}", value.pointer, reason);
    }
  }
  std::string text = fmt::format("{}: ok", path);
  if (!changed.empty()) text += fmt::format("\n  not at the default: {}", fmt::join(changed, ", "));
  for (const std::string& line : {describe_batch(parsed), describe_groups(parsed)}) {
    if (!line.empty()) text += "\n  " + line;
  }
  if (!left_over.empty()) {
    text += fmt::format("\n  \"auto\", the program has to give it: {}", fmt::join(left_over, ", "));
  }
  if (!for_pytorch.empty()) {
    text += fmt::format("\n  for PyTorch models only: {}", fmt::join(for_pytorch, ", "));
  }
  text += without_effect;
  for (const std::string& warning : parsed.warnings) {
    if (!warning.starts_with("no effect")) text += fmt::format("\n  warning: {}", warning);
  }
  return text + '\n';
}

std::string elasticity_report(const std::string& path, int world_size) {
  ParsedConfig parsed = load_config_for(ConfigReader::pytorch, path);
  const Elasticity section = elasticity_of(parsed);
  if (!section.enabled) {
    fail<ConfigError>("{}: /elasticity/enabled is not true, so batch sizes are as given", path);
  }
  const ElasticBatch general = elastic_batch(section, 0);
  const std::string ranks = general.world_sizes.empty()
                                ? "none from min_gpus to max_gpus"
                                : fmt::format("{}", fmt::join(general.world_sizes, ", "));
  std::string text = fmt::format("{}: elasticity {}\n  train_batch_size: {}\n  ranks: {}\n", path,
                                 section.version, general.train_batch_size, ranks);
  if (world_size > 0) {
    const BatchConfig batch = batch_for(parsed, world_size);
    text += fmt::format(
        "on {} rank{}:\n  train_batch_size: {}\n  train_micro_batch_size_per_gpu: {}\n  "
        "gradient_accumulation_steps: {}\n",
        world_size, world_size == 1 ? "" : "s", batch.train_batch_size, batch.micro_batch_size,
        batch.accumulation_steps);
  } else if (counts_hosts(section)) {
    text += "other numbers of ranks have batches of their own: --world_size N shows them\n";
  }
  return text;
}

std::string show_config(ParsedConfig parsed, const RunFacts& facts) {
  const int world_size = facts.world_size;
  resolve_known(parsed, facts);
  std::vector<Line> lines = {{0, "{"}};
  std::vector<std::string_view> open;
  const auto close_down_to = [&](size_t depth) {
    for (size_t i = open.size(); i > depth; --i) lines.push_back({i, "}"});
  };
  for (const ConfigValue& value : parsed.values) {
    if (value.value == "null") continue;
    const std::vector<std::string_view> blocks = blocks_of(value.pointer);
    const auto common = static_cast<size_t>(std::ranges::mismatch(open, blocks).in1 - open.begin());
    close_down_to(common);
    for (size_t i = common; i < blocks.size(); ++i) {
      lines.push_back({i + 1, fmt::format("\"{}\": {{", blocks[i])});
    }
    open = blocks;
    lines.push_back({open.size() + 1, fmt::format("\"{}\": {}", spec_of(value).name(), value.value),
                     comment_of(value)});
  }
  close_down_to(0);
  lines.push_back({0, "}"});
  return fmt::format("// {}, {} rank{}\n{}", printable(parsed.config.source), world_size,
                     world_size == 1 ? "" : "s", join_lines(lines));
}

}  // namespace zerorun
