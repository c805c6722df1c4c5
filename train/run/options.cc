#include "train/run/options.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/files/file.h"
#include "config/command_line.h"
#include "core/check.h"
#include "core/printable.h"
#include "train/model/gpt_config.h"

namespace zerorun::train {

namespace {

constexpr const char* kAbout = "Trains a GPT-2 model on text, on one or more ranks.";
constexpr const char* kFooter =
    "Options of the groups Job and Output may also be set in the config, as zerorun.train.NAME; "
    "the\ncommand line takes precedence. Options may be written with - or _ between "
    "words.\n\nExamples:\n  zerorun --num_gpus 2 train\n  zerorun --num_gpus 2 train --config "
    "ds_config.json --data my_text/ --model mini --save out/\n  zerorun --num_gpus 2 train "
    "--config ds_config.json --data my_text/ --save out/ --resume out/ --steps 800\n  zerorun "
    "train --init gpt2/ --data tokens.bin "
    "--dtype bf16\n\nExit code: 0 if the run finished and was saved; 128 + the signal's number if "
    "a signal ended the run\nearly and it was saved; 2 for an invalid command line, config or "
    "data; 1 for other errors, such as\na full disk or a damaged checkpoint.\n\nDocumentation of "
    "the config: docs/config.md; of .bin files: docs/data_format.md.";

// The options of a group of the help.
struct Group : AppOptions {
  using AppOptions::AppOptions;
  template <typename T>  // that may be empty
  CLI::Option* any_text(const char* name, T& value, const char* word, const std::string& help) {
    return app.add_option(name, value, help)->type_name(word);
  }
  template <typename T>  // from 0, whose default the help shows
  void count(const char* name, T& value, const char* help, const char* word = "N") {
    integer(name, value, word, 0, help)->capture_default_str();
  }
};

void add_job_options(CLI::App& app, TrainOptions& options) {
  Group job(app, "Job");
  job.text("--data", options.data, "PATH...",
           "Text files or folders, read as bytes, or .bin files of tokens. Default: the source of "
           "Python's standard library, else the texts of common licences")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  job.text("--model", options.model, "NAME|FILE",
           preset_names() +
               ", or a config.json of Hugging Face's GPT-2. Default: that of --init "
               "or --resume, else nano");
  job.text("--init", options.init, "DIR",
           "Start from the weights of a Hugging Face GPT-2 (safetensors) in this folder");
  job.integer("--seq_len", options.seq_len, "N", 1,
              fmt::format("Tokens per sequence. Default: the model's number of positions, at most "
                          "{}; without a config at most {}",
                          kConfigSeqLen, kSeqLen));
  job.integer("--micro_batch", options.micro_batch, "N", 1,
              fmt::format("Sequences per rank in a micro-step. Default: the config's value, else "
                          "{}; without a config {}",
                          kConfigMicroBatch, kMicroBatch));
  job.integer("--steps", options.steps, "N", 0,
              fmt::format("Total number of optimizer steps, including those before --resume. "
                          "Default: {}; without a config {}",
                          kConfigSteps, kSteps));
  job.count("--seed", options.seed, "Seed of the initial parameters, the data order and samples");
  job.one_of(
      "--dtype", options.dtype, {"fp32", "bf16", "fp16"},
      "dtype of parameters and gradients. Default: that of the config; without a config bf16");
  job.flag("--recompute", options.recompute,
           "Activation checkpointing: keep only the input of each block and recompute the block in "
           "backward");
  job.flag("--fast_attention", options.fast_attention,
           "Let cuDNN's attention add gradients in any order (CUDA, bf16 and fp16): its memory "
           "grows with the sequence length, not with its square, and results of two runs differ in "
           "their last bits");
}

void add_output_options(CLI::App& app, TrainOptions& options) {
  Group output(app, "Output");
  output
      .any_text("--save", options.save, "DIR",
                "Folder for checkpoints and for the final model in Hugging Face's format; \"\": "
                "save nothing")
      ->capture_default_str();
  output.count("--save_every", options.save_every,
               "Steps between checkpoints; 0: save only at the end");
  output.flag("--save_async", options.save_async,
              "Continue training while a checkpoint is written: training waits only for a copy in "
              "memory. A save that is due during another one is delayed until that is done. Same "
              "as /checkpoint/async_save in the config");
  output.count("--keep_last", options.keep_last,
               "Number of checkpoints to keep: a save removes older ones; 0: keep all");
  output.count("--keep_every", options.keep_every,
               "With --keep_last: also keep the checkpoints of every N-th step");
  output.text("--resume", options.resume, "DIR",
              "Continue from the last checkpoint in this folder, the --save folder of a run");
  output.count("--eval_every", options.eval_every,
               "Steps between evaluations on the last 5 % of the data; 0: no evaluation");
  output.any_text("--sample", options.sample, "PROMPT",
                  "Prompt for the text generated at the end; token ids for .bin data; \"\": "
                  "generate nothing. Default: for text a line break; for Python's library the "
                  "start of a function");
  output.text("--metrics", options.metrics, "FILE",
              "Write one JSON object per step to this file (docs/metrics.md)");
}

void add_device_options(CLI::App& app, TrainOptions& options) {
  Group device(app, "Device");
  add_accelerator(app, options.accelerator);
  device.flag("--tf32", options.tf32,
              "Compute the matrix products of an fp32 model in TF32 (CUDA)");
  device
      .one_of("--epilogues", options.epilogues, {"all", "gelu", "bias_gradient", "none"},
              "What is computed with the matrix product next to it, and not by a kernel of its own "
              "(CUDA): GELU, the gradients of biases, or both. bench_gpu measures which is faster; "
              "results differ in their last bits")
      ->capture_default_str();
  device.integer("--attention_workspace", options.attention_workspace, "MIB", 0,
                 "Maximum memory in MiB for the workspace of cuDNN's attention (CUDA, bf16 and "
                 "fp16), which grows with the square of the sequence length; less memory makes it "
                 "slower. Default: no limit");
}

void add_timeline_options(CLI::App& app, TrainOptions& options) {
  Group timeline(app, "Timeline");
  timeline.text("--trace", options.trace, "FILE",
                "Write a timeline of all ranks to this file, for Perfetto (ui.perfetto.dev). "
                "Default: zerorun.trace.file of the config");
  timeline
      .integer("--trace_steps", options.trace_steps, "FIRST LAST", 1,
               "First and last step of the timeline. Default: those of the config, else the second "
               "to the fourth step of the run")
      ->expected(2);
}

void add_sampling_options(CLI::App& app, TrainOptions& options) {
  Group sampling(app, "Sampling");
  sampling.count("--sample_tokens", options.sample_tokens, "Number of tokens to generate");
  sampling
      .number("--temperature", options.temperature, "T", 0.0, 100.0,
              "Sampling temperature; 0: always take the most likely token")
      ->capture_default_str();
  sampling.count("--top_k", options.top_k, "Sample from the K most likely tokens; 0: from all",
                 "K");
  sampling.text("--logits", options.logits, "FILE",
                "For debugging: write the logits of the prompt to this file, fp32 [tokens, "
                "vocabulary]");
}

// The options by which DeepSpeed scripts accept their config.
constexpr auto kConfigOptions =
    std::to_array<const char*>({"--config", "--deepspeed", "--deepspeed_config"});

void add_config_options(CLI::App& app) {
  app.option_defaults()->group("Config");
  takes_text(app.add_option("--config",
                            "A ds_config.json. Default: ZeRO stage 2, bf16, Muon, a decaying "
                            "learning rate, gradient clipping at 1"),
             "FILE");
  app.add_option("--deepspeed", "Same as --config")->expected(0, 1)->type_name("[FILE]");
  takes_text(app.add_option("--deepspeed_config", "Same as --config"), "FILE");
  app.add_option("--local_rank", "Ignored; accepted for compatibility with DeepSpeed's launcher")
      ->type_name("N");
}

// Returns the path of the config. The same file may be given with several of the options.
std::string config_path(const CLI::App& app) {
  std::string path;
  for (const char* name : kConfigOptions) {
    for (const std::string& given : app.get_option(name)->results()) {
      if (given.empty() || given == path) continue;
      if (!path.empty()) fail<ConfigError>("a run has one config, got two: {} and {}", path, given);
      path = given;
    }
  }
  if (path.empty() && app.count("--deepspeed") > 0) {
    fail<ConfigError>("--deepspeed needs a config: --deepspeed FILE, or --deepspeed_config FILE");
  }
  return path;
}

// Throws ConfigError for the first unknown option or, if there is none, for the first unexpected
// word.
void check_all_placed(const CLI::App& app) {
  const std::vector<std::string> extras = app.remaining();
  if (extras.empty()) return;
  const auto option = std::find_if(extras.begin(), extras.end(),
                                   [](const std::string& word) { return word.starts_with('-'); });
  if (option == extras.end()) {
    fail<ConfigError>("unexpected argument '{}': it belongs to no option; see train --help",
                      printable(extras.front()));
  }
  fail_unknown_option(app, option->substr(0, option->find('=')),
                      "train --help; the launcher's options come before the word train");
}

std::vector<std::string> texts_of(const nlohmann::json& value) {
  std::vector<std::string> texts;
  for (const auto& item : value.is_array() ? value : nlohmann::json::array({value})) {
    texts.push_back(item.is_string() ? item.get<std::string>() : item.dump());
  }
  return texts;
}

// Options that the config has in other sections than /zerorun/train, which comes before them.
constexpr auto kElsewhere = std::to_array<std::pair<std::string_view, const char*>>(
    {{"/checkpoint/async_save", "save_async"},
     {"/checkpoint/keep_last", "keep_last"},
     {"/checkpoint/keep_every", "keep_every"},
     {"/zerorun/trace/file", "trace"},
     {"/zerorun/trace/steps", "trace_steps"}});

// Passes the options of the config that are not on the command line to CLI11, so that both are
// checked in the same way.
void apply_config(CLI::App& app, const ParsedConfig& given) {
  const std::string& source = given.config.source;
  const auto apply = [&](std::string_view pointer, const std::string& name,
                         const nlohmann::json& value) {
    CLI::Option* const option = app.get_option_no_throw("--" + name);
    if (option == nullptr) fail<ConfigError>("{}: {}: train has no such option", source, pointer);
    if (option->count() > 0 || value.is_null()) return;
    const std::vector<std::string> texts = texts_of(value);
    const int most = std::max(option->get_items_expected_max(), 1);  // a flag has 0 and takes 1
    if (std::ssize(texts) > most) {
      fail<ConfigError>("{}: {}: got {} values, expected at most {}", source, pointer, texts.size(),
                        most);
    }
    try {
      option->add_result(texts);
      option->run_callback();
    } catch (const CLI::ParseError& error) {
      fail<ConfigError>("{}: {}: {}", source, pointer, error.what());
    }
  };
  const auto options = nlohmann::json::parse(given.config.train_options, nullptr, false);
  for (const auto& [name, value] : options.items()) apply("/zerorun/train/" + name, name, value);
  for (const auto& [pointer, name] : kElsewhere) {
    const auto found = std::ranges::find(given.values, pointer, &ConfigValue::pointer);
    // Other keys set some of these values, too.
    if (found == given.values.end() || found->value == found->fallback) continue;
    const auto value = nlohmann::json::parse(found->value, nullptr, false);
    if (!value.empty() && value != "") apply(pointer, name, value);  // else it asks for nothing
  }
}

void check(const TrainOptions& options) {
  if (const auto& steps = options.trace_steps;
      !steps.empty() && (steps.size() != 2 || steps[0] > steps[1])) {
    fail<ConfigError>("--trace_steps: got {}, expected the first and the last step",
                      fmt::join(steps, " "));
  }
  if (options.save_every > 0 && options.save.empty()) {
    fail<ConfigError>("--save_every {} needs a folder: --save DIR", options.save_every);
  }
  if (options.keep_every > 0 && options.keep_last == 0) {
    fail<ConfigError>("--keep_every {} needs --keep_last N: without it all checkpoints stay",
                      options.keep_every);
  }
  if (!options.init.empty() && !options.resume.empty()) {
    fail<ConfigError>("--init {} and --resume {}: a run starts from one of them", options.init,
                      options.resume);
  }
  if (!options.resume.empty() && !path_exists(options.resume)) {
    fail<ConfigError>("--resume {}: no such folder", options.resume);
  }
}

// Reverses the arguments, as CLI11 expects them. "--name=" becomes an empty value; CLI11 itself
// would take the next argument as the value.
std::vector<std::string> in_reverse(const std::vector<std::string>& arguments) {
  std::vector<std::string> reversed;
  for (auto argument = arguments.rbegin(); argument != arguments.rend(); ++argument) {
    const std::string one = with_underscores(*argument);
    const bool empty = one.starts_with("--") && one.find('=') == one.size() - 1;
    if (empty) reversed.emplace_back();
    reversed.push_back(empty ? one.substr(0, one.size() - 1) : one);
  }
  return reversed;
}

}  // namespace

void define_options(CLI::App& app, TrainOptions& options) {
  app.description(kAbout);
  app.footer(kFooter);
  use_plain_help(app);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  add_job_options(app, options);
  add_output_options(app, options);
  add_device_options(app, options);
  add_timeline_options(app, options);
  add_sampling_options(app, options);
  add_config_options(app);
}

CommandLine parse_command_line(const std::vector<std::string>& arguments) {
  CommandLine line;
  CLI::App app("", "train");
  define_options(app, line.options);
  app.allow_extras();
  try {
    app.parse(in_reverse(arguments));
  } catch (const CLI::CallForHelp&) {
    line.help = app.help("zerorun [LAUNCHER OPTIONS]");
    return line;
  } catch (const CLI::ParseError& error) {
    fail<ConfigError>("{}; see train --help", error.what());
  }
  check_all_placed(app);
  const std::string path = config_path(app);
  if (!path.empty()) {
    line.config = load_config(path);
    apply_config(app, *line.config);
  }
  check(line.options);
  return line;
}

}  // namespace zerorun::train
