#include "launcher/options.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <string_view>

#include "config/command_line.h"
#include "core/check.h"

namespace zerorun {

namespace {

// An option of DeepSpeed's launcher or of torchrun that does not work here yet.
struct ForeignOption {
  std::string_view name;
  std::string_view advice = "";
};
constexpr auto kNotYet = std::to_array<ForeignOption>({
    {"--hostfile"},
    {"-H"},
    {"--launcher"},
    {"--launcher_args"},
    {"--no_ssh"},
    {"--no_ssh_check"},
    {"--ssh_port"},
    {"--force_multi"},
    {"--venv_script"},
    {"--save_pid"},
    {"--autotuning"},
    {"--elastic_training"},
    {"--min_elastic_nodes"},
    {"--max_elastic_nodes"},
    {"--max_restarts"},
    {"--bind_core_list", "start zerorun under taskset to choose the CPUs"},
    {"--enable_each_rank_log", "use --log_dir"},
    {"--redirects", "use --log_dir"},
    {"-r", "use --log_dir"},
    {"--tee", "use --log_dir"},
    {"-t", "use --log_dir"},
    {"--shutdown_timeout", "use --grace_period"},
    {"--rdzv_backend"},
    {"--rdzv_endpoint", "use --master_addr and --master_port"},
    {"--rdzv_id"},
    {"--rdzv_conf"},
    {"--local_addr"},
    {"--local_ranks_filter"},
    {"--log_level"},
    {"--logs_specs"},
    {"--monitor_interval"},
    {"--numa_binding"},
    {"--role"},
    {"--run_path"},
    {"--signals_to_handle"},
    {"--start_method"},
    {"--virtual_local_rank"},
});

// Text of the options that need a check beyond their type.
struct RawOptions {
  std::string nodes = "1";
  int node_rank = 0;
  double grace_seconds = 30;
  bool ignored = false;
};

constexpr std::string_view kDescription =
    "Starts PROGRAM on every rank of a job and stays until all have ended.\n\n"
    "PROGRAM is a bundled program (train), a .py file, or an executable; its arguments follow it.\n"
    "Options come before it, and may be written with - or _ between words.";

constexpr std::string_view kFooter =
    "Tools (a tool's name is one only as the first word; each has its own --help):\n"
    "  zerorun plan          bytes of each rank for a configuration and a model\n"
    "  zerorun config        check, show and document configurations\n"
    "  zerorun ckpt verify   check every byte of checkpoints\n"
    "  zerorun bench nvme    measure a disk as offload uses it\n"
    "  zerorun env           describe this machine, for bug reports\n"
    "  zerorun version       print the version\n\n"
    "Examples:\n"
    "  zerorun --num_gpus 2 train\n"
    "  zerorun --num_gpus 2 train --config ds_config.json --data my_text/ --save out/\n"
    "  zerorun --include localhost:0,2 --module my.train --deepspeed ds_config.json\n"
    "  CUDA_VISIBLE_DEVICES=4,5,6,7 zerorun --exclude localhost:1 train.py    (GPUs 4, 6 and 7)\n"
    "  zerorun --accelerator cpu --num_gpus 4 torchrun_style.py\n"
    "  zerorun --dry_run --num_gpus 2 train\n\n"
    "Exit code: that of the first rank that failed, 128 + the signal's number if one killed it or\n"
    "ended the job, 2 for a command line that cannot be followed, 1 for other errors.";

void add_selection(CLI::App& app, LaunchOptions& options) {
  RankRequest& request = options.request;
  takes_text(app.add_option("--num_gpus,--num_accelerators,--nproc_per_node", request.count,
                            "Ranks on this host: the first N GPUs, or N CPU ranks; also auto (all "
                            "GPUs, else one rank per CPU), gpu, cpu, or -1 for the default. "
                            "Default: all GPUs, else one CPU rank per NUMA node"),
             "N");
  app.add_option("-i,--include", request.include,
                 "Use only these slots, as in localhost:0,2; a host without slots means all. Slots "
                 "count the GPUs in CUDA_VISIBLE_DEVICES, or all GPUs without it; one named twice "
                 "counts once, and \"\" is no filter")
      ->type_name("HOST:SLOTS");
  app.add_option("-e,--exclude", request.exclude, "Use all slots but these")
      ->type_name("HOST:SLOTS");
  add_accelerator(app, request.accelerator);
}

void add_program(CLI::App& app, LaunchOptions& options) {
  app.add_flag("-m,--module", options.program.module, "PROGRAM is a Python module (python -m)");
  app.add_flag("--no_python", options.program.no_python, "Execute PROGRAM itself, also a .py file");
  const auto set_local_rank = [&options](const std::string& name) {
    options.program.local_rank = name == "always"  ? LocalRank::always
                                 : name == "never" ? LocalRank::never
                                                   : LocalRank::automatic;
  };
  takes_one_of(app.add_option_function<std::string>(
                   "--local_rank", set_local_rank,
                   "Whether Python programs get --local_rank=N, as from DeepSpeed's launcher. "
                   "Default: auto, those whose source mentions it; the variable LOCAL_RANK says "
                   "the same to all"),
               {"always", "auto", "never"});
  app.add_flag_callback(
      "--no_local_rank,--use_env", [&options] { options.program.local_rank = LocalRank::never; },
      "The same as --local_rank never");
  app.add_flag("--deepspeed_compat", options.deepspeed_compat,
               "Python programs get zerorun's stand-in for DeepSpeed also where DeepSpeed is "
               "installed; where it is not, they get it in any case");
}

void add_running(CLI::App& app, LaunchOptions& options, RawOptions& raw) {
  takes_text(app.add_option("--master_addr", options.master_addr,
                            "Address of this host on which rank 0 listens. Default: 127.0.0.1"),
             "ADDRESS");
  constexpr int64_t kMaxPort = 65535;
  takes_integer(
      app.add_option("--master_port", options.master_port, "Its port. Default: a free one"), "PORT",
      0, kMaxPort);
  takes_text(app.add_option("--log_dir", options.log_dir,
                            "Append the output of rank R to DIR/rankR.log; rank 0 still prints"),
             "DIR");
  constexpr double kDay = 86400.0;
  takes_number(app.add_option("--grace_period", raw.grace_seconds,
                              "Time that ranks have to save and end after Ctrl-C or SIGTERM; a "
                              "second Ctrl-C ends them at once. Default: 30"),
               "SECONDS", 0.0, kDay);
  app.add_flag("--no_bind", options.no_bind, "Do not bind ranks to their share of the CPUs");
  app.add_flag("--dry_run", options.dry_run,
               "Print each rank's environment, CPUs and command; start nothing");
  takes_text(app.add_option("--num_nodes,--nnodes", raw.nodes, "Hosts; only 1 works yet"), "N");
  takes_integer(
      app.add_option("--node_rank", raw.node_rank, "This host's number; only 0 works yet"), "N", 0);
  app.add_flag("--standalone,--bind_cores_to_rank", raw.ignored, "Accepted: always so on one host");
}

void define_options(CLI::App& app, LaunchOptions& options, RawOptions& raw) {
  app.description(std::string(kDescription));
  app.footer(std::string(kFooter));
  use_plain_help(app);
  app.set_help_flag();  // an option like others, since those of PROGRAM are not the launcher's
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  add_selection(app, options);
  add_program(app, options);
  add_running(app, options, raw);
  app.add_flag("-h,--help", options.help, "Print this text");
  app.add_flag("--version", options.version, "Print the version");
  app.add_option("PROGRAM", options.program.name, "What to run")->type_name("");
  app.add_option("ARGUMENTS", options.program.arguments, "Its arguments, untouched")->type_name("");
}

[[noreturn]] void fail_unknown(const CLI::App& app, const std::string& given) {
  const std::string name = with_underscores(given);
  for (const ForeignOption& foreign : kNotYet) {
    if (name == foreign.name) {
      fail<ConfigError>("option {} is not supported yet{}{}", given,
                        foreign.advice.empty() ? "" : "; ", foreign.advice);
    }
  }
  if (given.starts_with("--localhost")) {
    fail<ConfigError>("unknown option {}; did you mean '--include {}'?", given, given.substr(2));
  }
  fail_unknown_option(app, name, "zerorun --help");
}

// Splits at PROGRAM, the first argument that is neither an option nor the value of one. The
// launcher's part comes back with underscores and with values joined by "=".
struct Split {
  std::vector<std::string> launcher;
  std::vector<std::string> program;
};

Split split_arguments(const CLI::App& app, const std::vector<std::string>& arguments) {
  Split split;
  size_t i = 0;
  while (i < arguments.size() && arguments[i].size() > 1 && arguments[i].front() == '-') {
    const std::string& argument = arguments[i++];
    if (argument == "--") break;
    const bool is_long = argument.starts_with("--");
    const size_t name_end = is_long ? std::min(argument.find('='), argument.size()) : 2;
    const std::string name = with_underscores(argument.substr(0, name_end));
    const CLI::Option* option = app.get_option_no_throw(name);
    if (option == nullptr) fail_unknown(app, argument.substr(0, name_end));
    std::string value = argument.substr(name_end);
    if (value.starts_with('=')) value.erase(0, 1);
    if (option->get_items_expected_min() == 0) {
      if (name_end < argument.size()) fail<ConfigError>("option {} takes no value", name);
      split.launcher.push_back(name);
      continue;
    }
    if (name_end == argument.size()) {
      if (i == arguments.size()) fail<ConfigError>("option {} needs a value", name);
      value = arguments[i++];
    }
    if (value.empty()) {
      // A script's --include "$FILTER" with nothing in FILTER.
      if (name == "-i" || name == "--include" || name == "-e" || name == "--exclude") continue;
      fail<ConfigError>("option {}: the value is empty; give one, or leave the option out", name);
    }
    split.launcher.push_back(fmt::format("--{}={}", option->get_lnames().front(), value));
  }
  split.program.assign(arguments.begin() + static_cast<ptrdiff_t>(i), arguments.end());
  return split;
}

void check_single_host(const RawOptions& raw) {
  if (raw.nodes != "1" && raw.nodes != "1:1" && raw.nodes != "-1") {
    fail<ConfigError>("--num_nodes {}: several hosts are not supported yet", raw.nodes);
  }
  if (raw.node_rank > 0) {
    fail<ConfigError>("--node_rank {}: several hosts are not supported yet", raw.node_rank);
  }
}

}  // namespace

LaunchOptions parse_options(const std::vector<std::string>& arguments) {
  LaunchOptions options;
  RawOptions raw;
  CLI::App app;
  define_options(app, options, raw);
  Split split = split_arguments(app, arguments);
  try {
    std::reverse(split.launcher.begin(), split.launcher.end());  // CLI11 takes them from the back
    app.parse(split.launcher);
  } catch (const CLI::ParseError& error) {
    fail<ConfigError>("{}", error.what());
  }
  options.grace_period = std::chrono::milliseconds(static_cast<int64_t>(raw.grace_seconds * 1000));
  if (options.help || options.version) return options;
  check_single_host(raw);
  if (split.program.empty()) {
    fail<ConfigError>("no PROGRAM is given, as in: zerorun --num_gpus 2 train; see zerorun --help");
  }
  options.program.name = split.program.front();
  options.program.arguments.assign(split.program.begin() + 1, split.program.end());
  return options;
}

std::string help_text() {
  LaunchOptions options;
  RawOptions raw;
  CLI::App app("", "zerorun");
  define_options(app, options, raw);
  app.get_option("PROGRAM")->required();  // as the usage line is to show it
  return app.help();
}

}  // namespace zerorun
