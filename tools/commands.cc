#include "tools/commands.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>

#include "config/checks/suggest.h"
#include "config/command_line.h"
#include "config/docs/report.h"
#include "config/json/reader.h"
#include "core/check.h"
#include "core/printable.h"
#include "launcher/hosts/cluster.h"
#include "launcher/options.h"
#include "tools/terminal/tool.h"
#include "train/model/gpt_config.h"
#include "train/run/options.h"

namespace zerorun {

namespace {

constexpr int64_t kMaxRanks = 1 << 20;
constexpr int64_t kMaxCount = int64_t{1} << 40;

void define_elastic(CLI::App& config, ToolArguments& arguments) {
  CLI::App* tool = add_tool(config, "elastic",
                            "Prints the batch size and numbers of ranks of the section elasticity",
                            "Example:\n  zerorun config elastic ds_config.json --world_size 8");
  AppOptions options{*tool};
  options.text("FILE,-c,--config", arguments.path, "", "A ds_config.json")->required();
  options.integer("-w,--world_size", arguments.elastic_ranks, "N", 0,
                  "Number of ranks of the job, to print its batch sizes", kMaxRanks);
  tool->callback(
      [&arguments] { print_text(elasticity_report(arguments.path, arguments.elastic_ranks)); });
}

void define_config(CLI::App& tools, ToolArguments& arguments) {
  CLI::App* config = add_tool(tools, "config", "Checks, shows and documents configurations",
                              "Examples:\n"
                              "  zerorun config check ds_config.json\n"
                              "  zerorun config show ds_config.json --world_size 8\n"
                              "  zerorun config schema > ds_config.schema.json");
  config->require_subcommand(1);
  CLI::App* check =
      add_tool(*config, "check", "Summarizes a configuration and reports all of its problems",
               "Example:\n  zerorun config check ds_config.json");
  AppOptions{*check}.text("FILE", arguments.path, "", "A ds_config.json")->required();
  check->callback([&arguments] { print_text(check_report(arguments.path)); });
  CLI::App* show = add_tool(*config, "show", "Prints the resolved value of every setting",
                            "Example:\n  zerorun config show ds_config.json --world_size 8");
  AppOptions options{*show};
  options.text("FILE", arguments.path, "", "A ds_config.json")->required();
  options
      .integer("--world_size", arguments.facts.world_size, "N", 1, "Number of ranks of the job",
               kMaxRanks)
      ->capture_default_str();
  options.integer("--hidden_size", arguments.facts.hidden_size, "N", 1,
                  "Width of the model, for bucket sizes that are \"auto\"", kMaxCount);
  options.integer("--steps", arguments.facts.total_steps, "N", 1,
                  "Optimizer steps, for a schedule whose length is \"auto\"", kMaxCount);
  show->callback([&arguments] {
    print_text(
        show_config(load_config_for(ConfigReader::pytorch, arguments.path), arguments.facts));
  });
  define_elastic(*config, arguments);
  add_tool(*config, "schema", "Prints the JSON Schema of a configuration, for editors", "")
      ->callback([] { print_text(json_schema()); });
  add_tool(*config, "docs", "Prints the reference of all keys in Markdown", "")->callback([] {
    print_text(config_markdown());
  });
}

void define_plan_limits(AppOptions tool, PlanOptions& plan) {
  tool.text("--gpu_memory", plan.device_memory, "SIZE",
            "Memory of each GPU, with its unit (80GB, 24GiB), to print which settings fit");
  tool.text("--host_memory", plan.host_memory, "SIZE", "Memory of each host (512GiB), likewise");
  tool.text("--disk", plan.disk, "SIZE",
            "Free space on the local disk of each host (2TB), likewise");
  tool.text("--nvme_path", plan.nvme_path, "DIR",
            "Folder on NVMe to which the configuration of --fit may offload");
  tool.text("--fit", plan.fit, "FILE",
            "Write the fastest configuration that fits, with its micro-batch size, to this file. "
            "Without --seq_len only model states have to fit");
}

void define_simulation(AppOptions tool, PlanOptions& plan) {
  tool.text("--simulate", plan.simulate, "hosts=H,gpus=G",
            "Simulate a cluster (replaces --world_size): print the time of a step there, "
            "what grows with the cluster, and which shard groups and stages are fastest");
  tool.text("--link", plan.link, "RATE",
            "Bandwidth of a host's network link per direction (400Gbit)");
  tool.text("--nvlink", plan.nvlink, "RATE",
            "Bandwidth between the GPUs of a host, per GPU and direction (450GB/s); with cpus=: at "
            "which one of the ranks copies memory while all do");
  tool.text(
      "--link_cpu", plan.link_cpu, "RATE",
      "With cpus=: bandwidth per direction at which a host's cores can send and receive if they do "
      "nothing else (1GB/s); this time, and that of copying and quantizing, is added to a step");
  tool.number("--latency_us", plan.latency_us, "N", 0, 1e6,
              "Latency of a message between hosts, in microseconds")
      ->capture_default_str();
  tool.number("--tflops", plan.tflops, "N", 0, 1e6,
              "10^12 operations per second that the model reaches on a GPU, to overlap computation "
              "with communication. Needs --micro_batch and --seq_len");
}

void define_plan(CLI::App& tools, PlanOptions& plan) {
  CLI::App* tool = add_tool(
      tools, "plan", "Predicts the memory of each rank for a configuration and a model",
      "Examples:\n"
      "  zerorun plan ds_config.json --model gpt2-xl --world_size 8\n"
      "  zerorun plan --model 7B --world_size 8 --gpu_memory 80GB --host_memory 512GiB\n"
      "  zerorun plan --model gpt2-xl --seq_len 1024 --gpu_memory 24GiB --host_memory 64GiB --fit "
      "fits.json\n"
      "  zerorun plan --model 70B --simulate hosts=1280,gpus=8 --link 400Gbit --nvlink 450GB/s");
  AppOptions options{*tool};
  options.text("FILE", plan.config, "",
               "A ds_config.json, or its base64 text. Default: stage 2, bf16, AdamW");
  options
      .text("--model", plan.model, "MODEL",
            train::preset_names() +
                ", a Hugging Face config.json (gpt2, llama, mistral, qwen2, qwen3, gemma, phi3), "
                "or a number of parameters (1.3B)")
      ->required();
  options.integer("--world_size", plan.world_size, "N", 1, "Number of ranks of the job", kMaxRanks)
      ->capture_default_str();
  options.integer("--ranks_per_host", plan.ranks_per_host, "N", 1,
                  "Number of ranks per host. Default: all", kMaxRanks);
  options.flag("--cpu", plan.cpu, "Plan for CPU ranks, which keep everything in host memory");
  options.integer(
      "--micro_batch", plan.micro_batch, "N", 1,
      "Sequences per rank in a micro-step. Default: that of FILE, else 8 for the models of train",
      kMaxCount);
  options.integer("--seq_len", plan.seq_len, "N", 1,
                  "Tokens per sequence, to include the activations of the models of train",
                  kMaxCount);
  options.flag("--recompute", plan.recompute, "Assume that activations are recomputed in backward");
  options.flag("--fast_attention", plan.fast_attention,
               "Assume that train has this option, which needs less memory");
  define_plan_limits(options, plan);
  define_simulation(options, plan);
  options.flag("--json", plan.json, "Print the table as JSON, the fastest setting first");
  tool->callback([&plan] { print_text(plan_report(plan)); });
}

void define_bench(CLI::App& tools, ToolArguments& arguments) {
  constexpr const char* kExample = "Example:\n  zerorun bench nvme /mnt/disk --gib 4";
  CLI::App* bench = add_tool(tools, "bench", "Measures this machine", kExample);
  bench->require_subcommand(1);
  CLI::App* nvme =
      add_tool(*bench, "nvme",
               "Measures a disk as NVMe offloading uses it, and what a step would take", kExample);
  AppOptions{*nvme}.text("DIR", arguments.path, "", "A folder on the disk")->required();
  constexpr double kMinGib = 0.25;  // 32 of the largest blocks, the maximum in flight
  constexpr double kMaxGib = 1024;
  AppOptions{*nvme}
      .number("--gib", arguments.bench_gib, "N", kMinGib, kMaxGib,
              "Amount to write and read, in GiB")
      ->capture_default_str();
  nvme->callback([&arguments] {
    const auto mib = static_cast<uint64_t>(arguments.bench_gib * 1024);
    bench_nvme(arguments.path, mib << 20, print_line);
  });
}

void define_shell(CLI::App& tools, ToolArguments& arguments) {
  // Topics are names of tools, which CLI11 would parse as tools, so commands.cc parses them.
  add_tool(tools, "help", "Explains a command, the launcher, train or environment variables",
           "Examples:\n"
           "  zerorun help ckpt verify\n"
           "  zerorun help environment");
  CLI::App* completion = add_tool(
      tools, "completion", "Prints a script that makes a shell complete zerorun's commands",
      "Examples:\n"
      "  eval \"$(zerorun completion bash)\"                   # in ~/.bashrc\n"
      "  eval \"$(zerorun completion zsh)\"                    # in ~/.zshrc\n"
      "  zerorun completion fish > ~/.config/fish/completions/zerorun.fish");
  AppOptions{*completion}
      .one_of("SHELL", arguments.shell, {"bash", "zsh", "fish"}, "Shell for which the script is")
      ->required();
  completion->callback([&arguments] { print_text(completion_script(arguments.shell)); });
  add_tool(tools, "version", "Prints the version and the commit that it was built from", "")
      ->callback([] { print_text(version_line()); });
}

void define_doctor(CLI::App& tools, DoctorOptions& doctor) {
  CLI::App* tool =
      add_tool(tools, "doctor", "Checks this machine for what jobs need, and says what to change",
               "Examples:\n"
               "  zerorun doctor\n"
               "  zerorun doctor --hostfile hosts --folder /mnt/checkpoints --json");
  AppOptions options{*tool};
  options.text("--hostfile", doctor.hostfile, "FILE",
               "Also check that this host knows the hosts of this file");
  options
      .text("--folder", doctor.folder, "DIR",
            "Folder of checkpoints, to measure its disk; 128 MiB are written "
            "there and removed")
      ->capture_default_str();
  options.integer("--port", doctor.port, "N", 1, "Port at which launchers or ranks meet", kMaxPort)
      ->capture_default_str();
  options.flag("--json", doctor.json, "Print the checks as JSON");
  tool->callback([&doctor] {
    const std::vector<Check> checks = examine(doctor);
    print_text(doctor.json ? doctor_json(checks) : doctor_text(checks));
    const auto problems = std::ranges::count_if(
        checks, [](const Check& check) { return check.state == Check::State::problem; });
    if (problems > 0) fail<DeviceError>("{} checks found a problem", problems);
  });
}

void define_host(CLI::App& tools, ToolArguments& arguments) {
  define_doctor(tools, arguments.doctor);
  define_bench(tools, arguments);
  add_tool(tools, "env", "Describes this machine, this build and the variables that zerorun reads",
           "")
      ->callback([] { print_text(host_report()); });
}

// Sets the task of the tools that were added since the last call.
void name_task(CLI::App& tools, const char* task) {
  const auto is_new = [](const CLI::App* tool) { return tool->get_group() == kNoTask; };
  for (CLI::App* tool : tools.get_subcommands(is_new)) tool->group(task);
}

std::vector<std::string> names_of(const CLI::App& tool) {
  std::vector<std::string> names;
  for (const CLI::App* one : tools_of(tool)) names.push_back(one->get_name());
  return names;
}

// Throws ConfigError that names the tool of the wrong argument and a suggestion, which CLI11's
// message lacks.
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
    fail<ConfigError>("{} needs a command: {}; see {} --help", command, fmt::join(names, ", "),
                      command);
  }
  if (!names.empty() && !argument->starts_with('-')) {
    const std::string nearest = nearest_name(*argument, names);
    fail<ConfigError>("{} has no command '{}'; {}", command, printable(*argument),
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

void define_tools(CLI::App& tools, ToolArguments& arguments) {
  use_plain_help(tools);
  tools.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  define_plan(tools, arguments.plan);
  define_config(tools, arguments);
  name_task(tools, "Before a run");
  define_ckpt(tools, arguments.ckpt);
  name_task(tools, "Checkpoints");
  define_python_tools(tools);
  name_task(tools, "Observing and tuning runs");
  define_host(tools, arguments);
  name_task(tools, "This machine");
  define_shell(tools, arguments);
  name_task(tools, "About this command");
}

std::vector<std::string> command_names() {
  ToolArguments values;
  CLI::App tools("", "zerorun");
  define_tools(tools, values);
  return names_of(tools);
}

std::optional<int> run_tool(const std::vector<std::string>& given) {
  const std::string first = given.empty() ? "" : given[0];
  const std::string second = given.size() < 2 ? "" : given[1];
  if (first == "help" && !second.starts_with('-')) {
    print_help({given.begin() + 1, given.end()});
    return 0;
  }
  if (first == "completion" && second == "--words") {  // request of the completion scripts
    print_text(candidates_text({given.begin() + 2, given.end()}));
    return 0;
  }
  if (const auto command =
          python_tool_command(given, ProgramSearch::here(), inherited_environment())) {
    become(*command);
  }
  ToolArguments values;
  CLI::App tools("", "zerorun");
  define_tools(tools, values);
  if (given.empty() || find_tool(tools, given.front()) == nullptr) return std::nullopt;
  std::vector<std::string> arguments;
  std::ranges::transform(given, std::back_inserter(arguments), with_underscores);
  try {
    tools.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    print_text(tools.help());
  } catch (const CLI::ParseError& error) {
    fail_parsing(tools, arguments, error);
  }
  return 0;
}

std::string list_commands() {
  ToolArguments values;
  CLI::App tools("", "zerorun");
  define_tools(tools, values);
  std::string text = "Commands (recognised only as the first word; each has its own --help):\n";
  std::string task;
  const auto add = [&text](const std::string& name, const CLI::App& tool) {
    text += fmt::format("    {:<24}{}\n", "zerorun " + name, tool.get_description());
  };
  for (const CLI::App* tool : tools_of(tools)) {
    if (tool->get_group() != task) text += fmt::format("  {}\n", task = tool->get_group());
    const std::vector<const CLI::App*> below = tools_of(*tool);
    if (below.empty()) add(tool->get_name(), *tool);
    for (const CLI::App* one : below) add(tool->get_name() + " " + one->get_name(), *one);
  }
  return text + "\n";
}

void print_help(const std::vector<std::string>& topic) {
  if (topic.empty()) {
    return print_text(list_commands() +
                      "Topics of zerorun help: these commands, launcher (its options), train, "
                      "environment (variables)");
  }
  const std::string& first = topic.front();
  if (first == "launcher") return print_text(help_text(list_commands()));
  if (first == "train") return print_text(train::parse_command_line({"--help"}).help);
  if (first == "environment") return print_text(environment_report());
  std::vector<std::string> command = topic;
  command.emplace_back("--help");
  if (!run_tool(command)) {
    fail<ConfigError>("zerorun help has no topic '{}'; zerorun help lists the topics",
                      printable(first));
  }
}

}  // namespace zerorun
