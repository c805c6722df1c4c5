#include "train/run/run_setup.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "checkpoint/files/file.h"
#include "comm/collective_limits.h"
#include "config/elasticity.h"
#include "config/env.h"
#include "core/check.h"
#include "core/format_bytes.h"
#include "core/parse_number.h"
#include "os/host_limits.h"
#include "os/process_identity.h"
#include "train/model/activations.h"
#include "train/model/parameters.h"
#include "zero/memory_plan.h"
#include "zerorun/version.h"

namespace zerorun::train {

using OrderedJson = nlohmann::ordered_json;

namespace {

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

// {name: value} of the values above 0, which are in the order of the enumeration.
template <typename Enum, typename Values>
OrderedJson by_name(const Values& values) {
  OrderedJson named = OrderedJson::object();
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] > 0) named[name_of(static_cast<Enum>(i))] = values[i];
  }
  return named;
}

constexpr int64_t kWarmupSteps = 20;

// Depends only on the model and the number of steps, so that a resumed run gets the same config.
// The learning rate of Muon is the same for all widths, because its updates have a fixed norm; that
// of AdamW, for other parameters, decreases with the width.
Config default_config(const GptConfig& model, int64_t steps) {
  Config config;
  config.zero.stage = 2;
  config.precision.param_dtype = DType::bf16;
  config.batch.micro_batch_size = kMicroBatch;
  OptimizerConfig& optimizer = config.optimizer;
  optimizer.type = "Muon";
  optimizer.muon_lr = 0.03F;
  optimizer.adam_lr = std::min(6e-3F, 0.5F / static_cast<float>(model.width));
  optimizer.lr = optimizer.muon_lr;
  optimizer.momentum = 0.95;
  optimizer.beta2 = 0.95;
  optimizer.eps = 1e-10F;
  optimizer.weight_decay = 0.1F;
  config.scheduler.type = "linear";
  config.scheduler.total_num_steps = std::max<int64_t>(1, steps);
  config.scheduler.warmup_num_steps = std::min(kWarmupSteps, steps / 10);
  config.source = "the default";
  return config;
}

void set_dtype(Config& config, const std::string& name) {
  if (name.empty()) return;
  PrecisionConfig& precision = config.precision;
  const DType dtype = parse_dtype(name);
  if (dtype != precision.param_dtype &&
      (precision.master_is_param || precision.state_dtype != DType::fp32)) {
    fail<ConfigError>(
        "--dtype {} contradicts {}, whose master weights or optimizer states go with {}", name,
        config.source, name_of(precision.param_dtype));
  }
  precision.param_dtype = dtype;
}

// Throws ConfigError for monitors that are implemented in Python; this program only writes metrics
// files, from which they can be fed.
void refuse_python_reports(const ParsedConfig& parsed) {
  constexpr std::array<std::string_view, 7> kInPython = {
      "/tensorboard/enabled",  "/csv_monitor/enabled",    "/wandb/enabled",   "/comet/enabled",
      "/comms_logger/enabled", "/flops_profiler/enabled", "/zerorun/metrics",
  };
  for (const ConfigValue& given : parsed.values) {
    const bool asks = given.value != "false" && given.value != "null";
    if (!asks || std::ranges::find(kInPython, given.pointer) == kInPython.end()) continue;
    fail<ConfigError>(
        "{}: {} is {}, which only PyTorch programs support: remove it and run train with --metrics "
        "FILE; `zerorun monitor` passes that file on to TensorBoard, CSV files, Weights & Biases "
        "or Comet, and `zerorun report` makes a page of it",
        parsed.config.source, given.pointer, given.value);
  }
}

ParsedConfig make_config(const CommandLine& line, const TrainOptions& options,
                         const GptConfig& model, int world_size) {
  ParsedConfig parsed;
  if (line.config) {
    parsed = *line.config;
    refuse_python_reports(parsed);
  } else {
    parsed.config = default_config(model, options.steps);
  }
  Config& config = parsed.config;
  set_dtype(config, options.dtype);
  BatchConfig& batch = config.batch;
  if (options.micro_batch > 0) {
    batch.micro_batch_size = options.micro_batch;
  } else if (batch.micro_batch_size == 0 && batch.train_batch_size == 0 &&
             !elasticity_of(parsed).enabled) {
    batch.micro_batch_size = kConfigMicroBatch;
  }
  resolve_auto(
      parsed, {.world_size = world_size, .hidden_size = model.width, .total_steps = options.steps});
  return parsed;
}

GptConfig make_model(const TrainOptions& options, const Corpus& corpus) {
  GptConfig model;
  if (!options.model.empty()) {
    model = gpt_config(options.model);
  } else if (!options.init.empty()) {
    model = read_hf_config(options.init);
  } else if (!options.resume.empty() && path_exists(options.resume + "/config.json")) {
    model = read_hf_config(options.resume);
  } else {
    model = gpt_config("nano");
  }
  if (model.vocabulary == 0) model.vocabulary = corpus.vocabulary();
  if (model.vocabulary < corpus.vocabulary()) {
    fail<ConfigError>(
        "the model has a vocabulary of {}, the data one of {}{}: give another model "
        "or other data",
        model.vocabulary, corpus.vocabulary(),
        corpus.is_text() ? " (bytes)" : " (their header says)");
  }
  return model;
}

BatchShape make_batch(const TrainOptions& options, const Config& config, const GptConfig& model,
                      const RankInfo& rank) {
  if (options.seq_len > model.positions) {
    fail<ConfigError>("--seq_len {} is longer than the model's {} positions", options.seq_len,
                      model.positions);
  }
  return {.micro_batch = config.batch.micro_batch_size,
          .accumulation_steps = config.batch.accumulation_steps,
          .seq_len = options.seq_len,
          .world_size = rank.world_size,
          .rank = rank.rank};
}

// Checks the memory, because a kernel that overcommits would grant too much and kill the ranks
// later.
void check_memory(const RunSetup& setup, const RankInfo& rank) {
  const BatchShape& batch = setup.batch;
  const double tokens = static_cast<double>(batch.micro_batch) * static_cast<double>(batch.seq_len);
  const double needed = std::min(
      tokens * activation_nbytes_per_token(setup.model, setup.options.recompute, DType::fp32) +
          logits_nbytes(setup.model, DType::fp32, tokens),
      0x1p63);  // limit of the values that can be printed
  const size_t available = host_limits().available_bytes();
  if (needed * rank.local_world_size <= static_cast<double>(available)) return;
  fail<ConfigError>(
      "--micro_batch {} with --seq_len {} needs {} for the activations of each of {} ranks on this "
      "host, which has {} left: give a smaller --micro_batch (and more "
      "gradient_accumulation_steps){}",
      batch.micro_batch, batch.seq_len, format_bytes(static_cast<size_t>(needed)),
      rank.local_world_size, format_bytes(available),
      setup.options.recompute ? "" : " or --recompute");
}

int32_t parse_token(std::string_view text, int64_t vocabulary) {
  const std::optional<int32_t> token = parse_number<int32_t>(text, 0);
  if (!token || *token >= vocabulary) {
    fail<ConfigError>(
        "--sample: '{}' is not a token id below {}; a model of tokens takes ids, as "
        "in --sample '464 3290'",
        text, vocabulary);
  }
  return *token;
}

std::vector<int32_t> make_prompt(const TrainOptions& options, const RunSetup& setup) {
  std::vector<int32_t> prompt;
  if (setup.corpus->is_text()) {
    for (const char byte : options.sample.value_or("\n")) {
      prompt.push_back(static_cast<unsigned char>(byte));
    }
    return prompt;
  }
  constexpr std::string_view kBetween = " ,\n\t";
  std::string_view rest = options.sample ? std::string_view(*options.sample) : std::string_view();
  while (true) {
    rest.remove_prefix(std::min(rest.find_first_not_of(kBetween), rest.size()));
    if (rest.empty()) return prompt;
    const std::string_view word = rest.substr(0, rest.find_first_of(kBetween));
    prompt.push_back(parse_token(word, setup.model.vocabulary));
    rest.remove_prefix(word.size());
  }
}

}  // namespace

RunSetup make_run_setup(const CommandLine& line, const RankInfo& rank, bool on_host) {
  RunSetup setup;
  setup.options = line.options;
  TrainOptions& options = setup.options;
  if (options.steps < 0) options.steps = line.config ? kConfigSteps : kSteps;
  if (const auto& traced = options.trace_steps; !traced.empty() && traced[0] > options.steps) {
    fail<ConfigError>("--trace_steps {}: the run ends after step {}", fmt::join(traced, " "),
                      options.steps);
  }
  std::vector<std::string> paths = options.data;
  setup.data_description = fmt::format("{}", fmt::join(paths, ", "));
  if (paths.empty()) {
    DefaultText text = find_default_text(read_environment("HOME").value_or(""));
    paths = std::move(text.paths);
    setup.data_description = std::move(text.description);
    if (!options.sample) options.sample = std::move(text.prompt);
  }
  setup.corpus = std::make_unique<Corpus>(paths);
  setup.model = make_model(options, *setup.corpus);
  ParsedConfig parsed = make_config(line, options, setup.model, rank.world_size);
  setup.config = std::move(parsed.config);
  setup.settings = std::move(parsed.values);
  if (options.seq_len == 0) {
    options.seq_len = std::min(setup.model.positions, line.config ? kConfigSeqLen : kSeqLen);
  }
  setup.batch = make_batch(options, setup.config, setup.model, rank);
  if (on_host) check_memory(setup, rank);
  setup.batches = std::make_unique<Batches>(*setup.corpus, setup.batch, options.seed);
  if (!options.init.empty()) setup.weights.emplace(options.init, setup.model);
  setup.prompt = make_prompt(options, setup);
  if (!options.logits.empty() && setup.prompt.empty()) {
    fail<ConfigError>("--logits {}: it needs the logits of a prompt, but --sample is empty",
                      options.logits);
  }
  return setup;
}

OrderedJson run_description(const RunSetup& setup, Communicator& comm, Device& device) {
  const HostLayout layout{comm.world_size(), comm.local_world_size(), device.is_host()};
  const auto plan = plan_memory(setup.config, parameter_specs(setup.model), layout);
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
      {"plan", by_name<MemoryCategory>(plan.by_category())},
      {"limits", by_name<Collective>(measure_collectives(comm, device))},
  };
}

}  // namespace zerorun::train
