#include "train/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "config/suggest.h"
#include "core/check.h"

namespace zerorun::train {

namespace {

constexpr const char* kAbout =
    "Trains a GPT-2 on text, on one rank or several: zerorun --num_gpus 2 train [OPTIONS]";
constexpr const char* kFooter =
    "Every option of the first two groups may also stand in the config, as zerorun.train.NAME; the "
    "command line wins.\nDocumentation of the config: docs/config.md; of .bin files: "
    "docs/data_format.md.";

// Counts have no signs and no fractions.
CLI::Validator at_least(int64_t low) {
  return {[low](std::string& text) -> std::string {
            int64_t value = 0;
            const auto [end, error] =
                std::from_chars(text.data(), text.data() + text.size(), value);
            const bool read = error == std::errc() && end == text.data() + text.size();
            if (read && value >= low) return {};
            return fmt::format("expected an integer of at least {}, got '{}'", low, text);
          },
          ""};
}

CLI::Validator number_between(double low, double high) {
  return {[low, high](std::string& text) -> std::string {
            double value = 0.0;
            const auto [end, error] =
                std::from_chars(text.data(), text.data() + text.size(), value);
            const bool read = error == std::errc() && end == text.data() + text.size();
            if (read && value >= low && value <= high) return {};  // not so for NaN
            return fmt::format("expected a number from {} to {}, got '{}'", low, high, text);
          },
          ""};
}

void add_job_options(CLI::App& app, TrainOptions& options) {
  const std::string group = "Job";
  app.add_option("--data", options.data,
                 "Text files or folders, read as bytes, or .bin files of tokens [default: Python's "
                 "standard library, else the common licences]")
      ->type_name("PATH...")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group(group);
  app.add_option("--model", options.model,
                 "nano, mini, gpt2, gpt2-medium, gpt2-large, gpt2-xl, or a config.json of Hugging "
                 "Face's GPT-2 [default: that of --init or --resume, else nano]")
      ->type_name("NAME|FILE.json")
      ->group(group);
  app.add_option("--init", options.init, "Start from the safetensors of a Hugging Face GPT-2")
      ->type_name("HF_DIR")
      ->group(group);
  app.add_option("--seq_len", options.seq_len,
                 "Tokens in a sequence [default: the model's positions, at most 256]")
      ->check(at_least(1))
      ->type_name("N")
      ->group(group);
  app.add_option("--micro_batch", options.micro_batch,
                 "Sequences per rank and micro-step [default: the config's, else 8]")
      ->check(at_least(1))
      ->type_name("N")
      ->group(group);
  app.add_option("--steps", options.steps, "Optimizer steps in all, resumed ones included")
      ->check(at_least(0))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--seed", options.seed, "Of the initial parameters, the data order and samples")
      ->check(at_least(0))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--dtype", options.dtype,
                 "Of parameters and gradients [default: the config's, without config bf16]")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}).description(""))
      ->type_name("fp32|bf16|fp16")
      ->group(group);
  app.add_flag("--recompute", options.recompute,
               "Keep only each block's input, compute the block again in backward")
      ->group(group);
}

void add_output_options(CLI::App& app, TrainOptions& options) {
  const std::string group = "Output";
  app.add_option("--save", options.save,
                 "Folder for checkpoints and the model, in Hugging Face's layout; \"\": none")
      ->type_name("DIR")
      ->capture_default_str()
      ->group(group);
  app.add_option("--save_every", options.save_every,
                 "Steps between checkpoints; 0: only at the end")
      ->check(at_least(0))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--resume", options.resume, "Continue from the last checkpoint in a --save folder")
      ->type_name("DIR")
      ->group(group);
  app.add_option("--eval_every", options.eval_every,
                 "Steps between evaluations on the last 5 % of the data; 0: none")
      ->check(at_least(0))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--sample", options.sample,
                 "Prompt that is continued at the end; token ids for .bin data; \"\": none "
                 "[default: a line break, for text]")
      ->type_name("PROMPT")
      ->group(group);
  app.add_option("--metrics", options.metrics, "File for one JSON object a step")
      ->type_name("FILE")
      ->group(group);
}

void add_device_options(CLI::App& app, TrainOptions& options) {
  const std::string group = "Device";
  app.add_option_function<std::string>(
         "--accelerator",
         [&options](const std::string& name) {
           options.accelerator = name == "cpu"    ? Accelerator::cpu
                                 : name == "cuda" ? Accelerator::cuda
                                                  : Accelerator::automatic;
         },
         "What computes: auto is the rank's GPU if it has one [default: auto]")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}).description(""))
      ->type_name("auto|cpu|cuda")
      ->group(group);
  app.add_flag("--tf32", options.tf32, "Products of an fp32 model in TF32 (CUDA)")->group(group);
  app.add_option(
         "--attention_workspace", options.attention_workspace,
         "MiB that cuDNN's attention (CUDA, bf16 and fp16) may take for what grows with the "
         "square of the sequence; with less it is slower [default: all that it needs]")
      ->check(at_least(0))
      ->type_name("MIB")
      ->group(group);
}

void add_sampling_options(CLI::App& app, TrainOptions& options) {
  const std::string group = "Sampling";
  app.add_option("--sample_tokens", options.sample_tokens, "Tokens to generate")
      ->check(at_least(0))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--temperature", options.temperature, "0: always the most likely token")
      ->check(number_between(0.0, 100.0))
      ->type_name("T")
      ->capture_default_str()
      ->group(group);
  app.add_option("--top_k", options.top_k, "Choose among the K most likely tokens; 0: among all")
      ->check(at_least(0))
      ->type_name("K")
      ->capture_default_str()
      ->group(group);
  app.add_option("--logits", options.logits,
                 "Debugging aid: write the logits of the prompt, fp32 [tokens, vocabulary]")
      ->type_name("FILE")
      ->group(group);
}

// The spellings under which DeepSpeed scripts take their config.
constexpr auto kConfigOptions =
    std::to_array<const char*>({"--config", "--deepspeed", "--deepspeed_config"});

void add_config_options(CLI::App& app) {
  const std::string group = "Config";
  app.add_option("--config",
                 "A ds_config.json [default: ZeRO stage 2, bf16, AdamW, gradients clipped at 1]")
      ->type_name("FILE")
      ->group(group);
  app.add_option("--deepspeed", "The same as --config")
      ->expected(0, 1)
      ->type_name("[FILE]")
      ->group(group);
  app.add_option("--deepspeed_config", "The same as --config")->type_name("FILE")->group(group);
  app.add_option("--local_rank,--local-rank", "Accepted and ignored")->type_name("N")->group(group);
}

// Scripts may name the same file under several of the options.
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

// Of what CLI11 could not place, the first option or, without one, the first word.
void check_all_placed(const CLI::App& app) {
  const std::vector<std::string> extras = app.remaining();
  if (extras.empty()) return;
  const auto option = std::find_if(extras.begin(), extras.end(),
                                   [](const std::string& word) { return word.starts_with('-'); });
  if (option == extras.end()) {
    fail<ConfigError>("'{}' belongs to no option; see train --help", extras.front());
  }
  const std::string name = option->substr(0, option->find('='));
  const std::string bare = name.substr(std::min(name.find_first_not_of('-'), name.size()));
  std::vector<std::string> known;
  for (const CLI::Option* one : app.get_options()) {
    known.insert(known.end(), one->get_lnames().begin(), one->get_lnames().end());
  }
  const std::string nearest = nearest_name(bare, known);
  fail<ConfigError>("unknown option {}; {}", name,
                    nearest.empty() ? "see train --help" : "did you mean --" + nearest + "?");
}

std::vector<std::string> texts_of(const nlohmann::json& value) {
  std::vector<std::string> texts;
  for (const auto& item : value.is_array() ? value : nlohmann::json::array({value})) {
    texts.push_back(item.is_string() ? item.get<std::string>() : item.dump());
  }
  return texts;
}

// Gives the options of the config that the command line leaves open to CLI11, as if they stood
// there, so that both are checked alike.
void apply_config(CLI::App& app, const Config& config) {
  const auto values = nlohmann::json::parse(config.train_options, nullptr, false);
  for (const auto& [name, value] : values.items()) {
    CLI::Option* const option = app.get_option_no_throw("--" + name);
    if (option == nullptr) {
      fail<ConfigError>("{}: /zerorun/train/{}: train has no such option", config.source, name);
    }
    if (option->count() > 0 || value.is_null()) continue;
    try {
      option->add_result(texts_of(value));
      option->run_callback();
    } catch (const CLI::ParseError& error) {
      fail<ConfigError>("{}: /zerorun/train/{}: {}", config.source, name, error.what());
    }
  }
}

void check(const TrainOptions& options) {
  if (options.save_every > 0 && options.save.empty()) {
    fail<ConfigError>("--save_every {} needs a folder: --save DIR", options.save_every);
  }
  if (!options.init.empty() && !options.resume.empty()) {
    fail<ConfigError>("--init {} and --resume {}: a run starts from one of them", options.init,
                      options.resume);
  }
}

// In CLI11's order, the last first. "--name=" gives the empty text; CLI11 would take what follows.
std::vector<std::string> in_reverse(const std::vector<std::string>& arguments) {
  std::vector<std::string> reversed;
  for (auto argument = arguments.rbegin(); argument != arguments.rend(); ++argument) {
    const bool empty = argument->starts_with("--") && argument->find('=') == argument->size() - 1;
    if (empty) reversed.emplace_back();
    reversed.push_back(empty ? argument->substr(0, argument->size() - 1) : *argument);
  }
  return reversed;
}

}  // namespace

CommandLine parse_command_line(const std::vector<std::string>& arguments) {
  CommandLine line;
  CLI::App app(kAbout, "train");
  app.footer(kFooter);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  add_job_options(app, line.options);
  add_output_options(app, line.options);
  add_device_options(app, line.options);
  add_sampling_options(app, line.options);
  add_config_options(app);
  app.allow_extras();
  try {
    app.parse(in_reverse(arguments));
  } catch (const CLI::CallForHelp&) {
    line.help = app.help();
    return line;
  } catch (const CLI::ParseError& error) {
    fail<ConfigError>("{}; see train --help", error.what());
  }
  check_all_placed(app);
  const std::string path = config_path(app);
  if (!path.empty()) {
    line.config = load_config(path);
    apply_config(app, line.config->config);
  }
  check(line.options);
  return line;
}

}  // namespace zerorun::train
