#include "tools/commands.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "checkpoint/verify.h"
#include "config/suggest.h"
#include "config/report.h"
#include "core/check.h"
#include "tools/bench_nvme.h"
#include "tools/host_report.h"
#include "tools/plan.h"
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
};

constexpr int64_t kMaxRanks = 1 << 20;
constexpr int64_t kMaxCount = int64_t{1} << 40;

CLI::Range from_one(int64_t most) { return {int64_t{1}, most}; }

// CLI::Range would let "nan" pass.
std::string gib_problem(const std::string& text) {
  char* end = nullptr;
  const double gib = std::strtod(text.c_str(), &end);
  if (*end == '\0' && gib >= 0.25 && gib <= 1024) return {};
  return fmt::format("got {}, expected a number from 0.25 to 1024", text);
}

void print(const std::string& text) {
  fmt::print("{}{}", text, text.ends_with('\n') || text.empty() ? "" : "\n");
}

void define_config(CLI::App& tools, ToolArguments& arguments) {
  CLI::App* config = tools.add_subcommand("config", "Configurations")->require_subcommand(1);
  CLI::App* check = config->add_subcommand("check", "Say what a file asks for, and all errors");
  check->add_option("FILE", arguments.path, "A ds_config.json")->required();
  check->callback([&arguments] { print(check_report(arguments.path)); });
  CLI::App* show = config->add_subcommand("show", "Print every setting in effect");
  show->add_option("FILE", arguments.path, "A ds_config.json")->required();
  show->add_option("--world_size,--world-size", arguments.facts.world_size, "Ranks. Default: 1")
      ->check(from_one(kMaxRanks));
  show->add_option("--hidden_size,--hidden-size", arguments.facts.hidden_size,
                   "Width of the model, for bucket sizes that are \"auto\"")
      ->check(from_one(kMaxCount));
  show->add_option("--steps", arguments.facts.total_steps,
                   "Optimizer steps, for a schedule whose length is \"auto\"")
      ->check(from_one(kMaxCount));
  show->callback(
      [&arguments] { print(show_config(load_config(arguments.path), arguments.facts)); });
  config->add_subcommand("schema", "Print the JSON Schema of a configuration")->callback([] {
    print(json_schema());
  });
  config->add_subcommand("docs", "Print the reference of all keys in Markdown")->callback([] {
    print(config_markdown());
  });
}

void define_ckpt(CLI::App& tools, ToolArguments& arguments) {
  CLI::App* ckpt = tools.add_subcommand("ckpt", "Checkpoints")->require_subcommand(1);
  CLI::App* verify = ckpt->add_subcommand("verify", "Read every byte and check the sums");
  verify->add_option("DIR", arguments.path, "A checkpoint, or a folder of them")->required();
  verify->callback([&arguments] {
    verify_checkpoint(arguments.path, [](const std::string& line) {
      print(line);
      std::fflush(stdout);  // the next may take minutes
    });
  });
}

void define_plan(CLI::App& tools, PlanOptions& plan) {
  CLI::App* tool = tools.add_subcommand(
      "plan", "Bytes per rank for a configuration and a model, before anything runs");
  tool->add_option("FILE", plan.config,
                   "A ds_config.json, or base64. Default: stage 2, bf16, AdamW");
  tool->add_option("--model", plan.model,
                   "nano, mini, gpt2, gpt2-medium, gpt2-large, gpt2-xl, a Hugging Face "
                   "config.json (gpt2, llama, mistral, qwen2, qwen3, gemma, phi3), or a number of "
                   "parameters (1.3B)")
      ->required();
  tool->add_option("--world_size,--world-size", plan.world_size, "Ranks. Default: 1")
      ->check(from_one(kMaxRanks));
  tool->add_option("--ranks_per_host,--ranks-per-host", plan.ranks_per_host, "Default: all")
      ->check(from_one(kMaxRanks));
  tool->add_flag("--cpu", plan.cpu, "CPU ranks: everything is host memory");
  tool->add_option("--gpu_memory,--gpu-memory", plan.device_memory,
                   "Of each device, with its unit (80GB, 24GiB): says what fits");
  tool->add_option("--host_memory,--host-memory", plan.host_memory, "Of each host (512GiB)");
  tool->add_option("--disk", plan.disk, "Of each host (2TB)");
  tool->add_option("--nvme_path,--nvme-path", plan.nvme_path, "Folder that --fit may offload to");
  tool->add_option("--micro_batch,--micro-batch", plan.micro_batch,
                   "Default: the file's, else 8, as train, for its models")
      ->check(from_one(kMaxCount));
  tool->add_option("--seq_len,--seq-len", plan.seq_len,
                   "Tokens of a sequence: counts the activations of the bundled models")
      ->check(from_one(kMaxCount));
  tool->add_flag("--recompute", plan.recompute, "Activations are computed again in backward");
  tool->add_option("--fit", plan.fit,
                   "Write the fastest configuration that fits to this file, with its micro-batch");
  tool->callback([&plan] { print(plan_report(plan)); });
}

void define_bench(CLI::App& tools, ToolArguments& arguments) {
  CLI::App* bench = tools.add_subcommand("bench", "Measurements")->require_subcommand(1);
  CLI::App* nvme =
      bench->add_subcommand("nvme", "A disk as NVMe offload uses it, and what a step would cost");
  nvme->add_option("DIR", arguments.path, "A folder on the disk")->required();
  nvme->add_option("--gib", arguments.bench_gib,
                   "GiB to write and read, from 0.25 (32 of the largest blocks, as many as are on "
                   "their way at once) to 1024. Default: 1")
      ->check(gib_problem);
  nvme->callback([&arguments] {
    const auto mib = static_cast<uint64_t>(arguments.bench_gib * 1024);
    bench_nvme(arguments.path, mib << 20, [](const std::string& line) {
      print(line);
      std::fflush(stdout);
    });
  });
}

void define_tools(CLI::App& tools, ToolArguments& arguments) {
  define_config(tools, arguments);
  define_ckpt(tools, arguments);
  tools.add_subcommand("env", "This machine, this build, and the variables zerorun reads")
      ->callback([] { print(host_report()); });
  tools.add_subcommand("version", "The version")->callback([] {
    print("zerorun " ZERORUN_VERSION);
  });
  define_plan(tools, arguments.plan);
  define_bench(tools, arguments);
}

std::vector<std::string> names_of(const CLI::App& tool) {
  std::vector<std::string> names;
  for (const CLI::App* one : tool.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(one->get_name());
  }
  return names;
}

// CLI11 says of "chekc" only that it was not expected, and does not say of which tool DIR is.
[[noreturn]] void fail_parsing(const CLI::App& tool, const std::vector<std::string>& arguments,
                               const CLI::ParseError& error) {
  const std::vector<std::string> names = names_of(tool);
  const std::string word = arguments.size() > 1 ? arguments[1] : "";
  const bool is_known = std::find(names.begin(), names.end(), word) != names.end();
  if (!names.empty() && !is_known && !word.empty() && !word.starts_with('-')) {
    const std::string nearest = nearest_name(word, names);
    fail<ConfigError>("zerorun {} has no '{}'; {}", tool.get_name(), word,
                      nearest.empty() ? fmt::format("it has {}", fmt::join(names, ", "))
                                      : fmt::format("did you mean '{}'?", nearest));
  }
  const std::string name = tool.get_name() + (is_known ? " " + word : "");
  if (!names.empty() && word.empty()) {
    fail<ConfigError>("zerorun {} what? It has {}; see zerorun {} --help", name,
                      fmt::join(names, ", "), name);
  }
  fail<ConfigError>("zerorun {}: {}; see zerorun {} --help", name, error.what(), name);
}

}  // namespace

std::optional<int> run_tool(const std::vector<std::string>& arguments) {
  if (arguments.empty()) return std::nullopt;
  ToolArguments values;
  CLI::App tools("", "zerorun");
  define_tools(tools, values);
  const auto all = tools.get_subcommands([](const CLI::App*) { return true; });
  const auto tool = std::find_if(all.begin(), all.end(), [&](const CLI::App* one) {
    return one->get_name() == arguments.front();
  });
  if (tool == all.end()) return std::nullopt;
  try {
    tools.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    print(tools.help());
  } catch (const CLI::ParseError& error) {
    fail_parsing(**tool, arguments, error);
  }
  return 0;
}

}  // namespace zerorun
