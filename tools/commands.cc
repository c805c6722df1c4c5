#include "tools/commands.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iterator>

#include "config/command_line.h"
#include "config/reader.h"
#include "config/report.h"
#include "config/suggest.h"
#include "core/check.h"
#include "core/printable.h"
#include "tools/bench_nvme.h"
#include "tools/ckpt_commands.h"
#include "tools/host_report.h"
#include "tools/plan.h"
#include "tools/python_tool.h"
#include "tools/tool.h"
#include "train/gpt_config.h"
#include "zerorun/config.h"
#include "zerorun/version.h"

namespace zerorun {

namespace {

// Values of the tools' arguments; must outlive the parsing.
struct ToolArguments {
  std::string path;
  RunFacts facts{.world_size = 1};
  PlanOptions plan;
  double bench_gib = 1;
  CkptArguments ckpt;
};

constexpr int64_t kMaxRanks = 1 << 20;
constexpr int64_t kMaxCount = int64_t{1} << 40;
void define_config(CLI::App& tools, ToolArguments& arguments) {
  CLI::App* config = add_tool(tools, "config", "Checks, shows and documents configurations",
                              "Examples:\n"
                              "  zerorun config check ds_config.json\n"
                              "  zerorun config show ds_config.json --world_size 8\n"
                              "  zerorun config schema > ds_config.schema.json");
  config->require_subcommand(1);
  CLI::App* check = add_tool(*config, "check", "Says what a file asks for, and everything wrong",
                             "Example:\n  zerorun config check ds_config.json");
  takes_text(check->add_option("FILE", arguments.path, "A ds_config.json"), "")->required();
  check->callback([&arguments] { print_text(check_report(arguments.path)); });
  CLI::App* show = add_tool(*config, "show", "Prints every setting in effect",
                            "Example:\n  zerorun config show ds_config.json --world_size 8");
  takes_text(show->add_option("FILE", arguments.path, "A ds_config.json"), "")->required();
  takes_integer(show->add_option("--world_size", arguments.facts.world_size, "Ranks of the job"),
                "N", 1, kMaxRanks)
      ->capture_default_str();
  takes_integer(show->add_option("--hidden_size", arguments.facts.hidden_size,
                                 "Width of the model, for bucket sizes that are \"auto\""),
                "N", 1, kMaxCount);
  takes_integer(show->add_option("--steps", arguments.facts.total_steps,
                                 "Optimizer steps, for a schedule whose length is \"auto\""),
                "N", 1, kMaxCount);
  show->callback([&arguments] {
    print_text(
        show_config(load_config_for(ConfigReader::pytorch, arguments.path), arguments.facts));
  });
  add_tool(*config, "schema", "Prints the JSON Schema of a configuration, for editors", "")
      ->callback([] { print_text(json_schema()); });
  add_tool(*config, "docs", "Prints the reference of all keys in Markdown", "")->callback([] {
    print_text(config_markdown());
  });
}

void define_plan_limits(CLI::App& tool, PlanOptions& plan) {
  takes_text(tool.add_option("--gpu_memory", plan.device_memory,
                             "Memory of each GPU, with its unit (80GB, 24GiB): says what fits"),
             "SIZE");
  takes_text(tool.add_option("--host_memory", plan.host_memory, "Memory of each host (512GiB)"),
             "SIZE");
  takes_text(tool.add_option("--disk", plan.disk, "Room on the local disk of each host (2TB)"),
             "SIZE");
  takes_text(tool.add_option("--nvme_path", plan.nvme_path,
                             "Folder that the configuration of --fit may offload to"),
             "DIR");
  takes_text(tool.add_option("--fit", plan.fit,
                             "Write the fastest configuration that fits to this file, with its "
                             "micro-batch"),
             "FILE");
}

void define_plan(CLI::App& tools, PlanOptions& plan) {
  CLI::App* tool = add_tool(
      tools, "plan", "Predicts the bytes of each rank for a configuration and a model",
      "Examples:\n"
      "  zerorun plan ds_config.json --model gpt2-xl --world_size 8\n"
      "  zerorun plan --model 7B --world_size 8 --gpu_memory 80GB --host_memory 512GiB\n"
      "  zerorun plan --model config.json --gpu_memory 24GiB --host_memory 64GiB --fit fits.json");
  takes_text(
      tool->add_option("FILE", plan.config,
                       "A ds_config.json, or its base64 text. Default: stage 2, bf16, AdamW"),
      "");
  takes_text(tool->add_option("--model", plan.model,
                              train::preset_names() +
                                  ", a Hugging Face config.json (gpt2, llama, mistral, qwen2, "
                                  "qwen3, gemma, phi3), or a number of parameters (1.3B)"),
             "MODEL")
      ->required();
  takes_integer(tool->add_option("--world_size", plan.world_size, "Ranks of the job"), "N", 1,
                kMaxRanks)
      ->capture_default_str();
  takes_integer(
      tool->add_option("--ranks_per_host", plan.ranks_per_host, "Ranks on a host. Default: all"),
      "N", 1, kMaxRanks);
  tool->add_flag("--cpu", plan.cpu, "CPU ranks: everything is in host memory");
  takes_integer(tool->add_option("--micro_batch", plan.micro_batch,
                                 "Sequences of a rank in a micro-step. Default: the file's, else "
                                 "8 for train's models"),
                "N", 1, kMaxCount);
  takes_integer(tool->add_option("--seq_len", plan.seq_len,
                                 "Tokens of a sequence: counts the activations of train's models"),
                "N", 1, kMaxCount);
  tool->add_flag("--recompute", plan.recompute, "Activations are computed again in backward");
  define_plan_limits(*tool, plan);
  tool->callback([&plan] { print_text(plan_report(plan)); });
}

void define_bench(CLI::App& tools, ToolArguments& arguments) {
  constexpr const char* kExample = "Example:\n  zerorun bench nvme /mnt/disk --gib 4";
  CLI::App* bench = add_tool(tools, "bench", "Measures this machine", kExample);
  bench->require_subcommand(1);
  CLI::App* nvme =
      add_tool(*bench, "nvme",
               "Measures a disk as NVMe offload uses it, and what a step would cost", kExample);
  takes_text(nvme->add_option("DIR", arguments.path, "A folder on the disk"), "")->required();
  constexpr double kLeastGib = 0.25;  // 32 of the largest blocks, as many as are in flight at once
  constexpr double kMaxGib = 1024;
  takes_number(nvme->add_option("--gib", arguments.bench_gib, "GiB to write and read"), "N",
               kLeastGib, kMaxGib)
      ->capture_default_str();
  nvme->callback([&arguments] {
    const auto mib = static_cast<uint64_t>(arguments.bench_gib * 1024);
    bench_nvme(arguments.path, mib << 20, print_line);
  });
}

void define_tools(CLI::App& tools, ToolArguments& arguments) {
  use_plain_help(tools);
  tools.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  define_config(tools, arguments);
  define_ckpt(tools, arguments.ckpt);
  add_tool(tools, "env", "Describes this machine, this build, and the variables zerorun reads", "")
      ->callback([] { print_text(host_report()); });
  add_tool(tools, "version", "Prints the version", "")->callback([] {
    print_text("zerorun " ZERORUN_VERSION);
  });
  define_plan(tools, arguments.plan);
  define_bench(tools, arguments);
}

const CLI::App* find_tool(const CLI::App& tools, const std::string& name) {
  for (const CLI::App* one : tools.get_subcommands([](const CLI::App*) { return true; })) {
    if (one->get_name() == name) return one;
  }
  return nullptr;
}

std::vector<std::string> names_of(const CLI::App& tool) {
  std::vector<std::string> names;
  for (const CLI::App* one : tool.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(one->get_name());
  }
  return names;
}

// Says of what tool an argument is wrong, and what was meant; CLI11 says neither.
[[noreturn]] void fail_parsing(const CLI::App& tools, const std::vector<std::string>& arguments,
                               const CLI::ParseError& error) {
  const CLI::App* tool = &tools;
  std::string command = "zerorun";
  auto argument = arguments.begin();
  for (; argument != arguments.end(); ++argument) {
    const CLI::App* below = find_tool(*tool, *argument);
    if (below == nullptr) break;
    tool = below;
    command += " " + tool->get_name();
  }
  const std::vector<std::string> names = names_of(*tool);
  if (!names.empty() && argument == arguments.end()) {
    fail<ConfigError>("{} what? It has {}; see {} --help", command, fmt::join(names, ", "),
                      command);
  }
  if (!names.empty() && !argument->starts_with('-')) {
    const std::string nearest = nearest_name(*argument, names);
    fail<ConfigError>("{} has no '{}'; {}", command, printable(*argument),
                      nearest.empty() ? fmt::format("it has {}", fmt::join(names, ", "))
                                      : fmt::format("did you mean '{}'?", nearest));
  }
  for (; argument != arguments.end() && *argument != "--"; ++argument) {
    const std::string name = argument->substr(0, argument->find('='));
    if (name.size() > 1 && name.front() == '-' && tool->get_option_no_throw(name) == nullptr) {
      fail_unknown_option(*tool, name, command + " --help");
    }
  }
  fail<ConfigError>("{}: {}; see {} --help", command, error.what(), command);
}

}  // namespace

std::optional<int> run_tool(const std::vector<std::string>& given) {
  if (const auto command = python_tool_command(given)) become(*command);
  ToolArguments values;
  CLI::App tools("", "zerorun");
  define_tools(tools, values);
  if (given.empty() || find_tool(tools, given.front()) == nullptr) return std::nullopt;
  std::vector<std::string> arguments;
  std::transform(given.begin(), given.end(), std::back_inserter(arguments), with_underscores);
  try {
    tools.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    print_text(tools.help());
  } catch (const CLI::ParseError& error) {
    fail_parsing(tools, arguments, error);
  }
  return 0;
}

}  // namespace zerorun
