#include <CLI/CLI.hpp>
#include <array>
#include <limits>

#include "config/command_line.h"
#include "launcher/options.h"

namespace zerorun {

namespace {

// Options that cannot work here, and what to do instead.
struct ForeignOption {
  std::string_view name;
  std::string_view advice;
};
constexpr auto kForeign = std::to_array<ForeignOption>({
    {"--autotuning", "write it before a Python script; to tune other programs use 'zerorun tune'"},
    {"--run_path", "name the script as PROGRAM"},
    {"--logs_specs", "use --log_dir, --redirects and --tee"},
    {"--event_log_handler", "the launcher records no events; use --log_dir"},
    {"--duplicate_stdout_filters", "use --local_ranks_filter"},
    {"--duplicate_stderr_filters", "use --local_ranks_filter"},
    {"--virtual_local_rank",
     "every rank sees all GPUs of the job and uses the one that LOCAL_RANK numbers"},
});

// Options of other launchers that are taken, and change nothing here.
struct IdleOption {
  const char* name;
  const char* note;  // empty where the option asks for what happens anyway
  bool has_value;
};
constexpr auto kIdle = std::to_array<IdleOption>({
    {"--bind_cores_to_rank", "", false},
    {"--monitor_interval", "the launcher notices the end of a rank at once", true},
    {"--start_method", "every rank is a separate program", true},
    {"--numa_binding", "ranks are bound to CPUs beside their GPU anyway", true},
});

constexpr std::string_view kDescription =
    "Starts PROGRAM on every rank of a job and waits until all ranks have ended.\n\nPROGRAM is a "
    "bundled program (train), a .py file, or an executable; its arguments follow it.\nOptions come "
    "before PROGRAM, and may be written with - or _ between words. The options of\nDeepSpeed's "
    "launcher and of torchrun are accepted, too.";

constexpr std::string_view kFooter =
    "Examples:\n  zerorun --num_gpus 2 train\n  zerorun --num_gpus 2 train --config ds_config.json "
    "--data my_text/ --save out/\n  zerorun --include localhost:0,2 --module my.train --deepspeed "
    "ds_config.json\n  CUDA_VISIBLE_DEVICES=4,5,6,7 zerorun --exclude localhost:1 train.py    "
    "(GPUs 4, 6 and 7)\n  zerorun --accelerator cpu --num_gpus 4 torchrun_style.py\n  zerorun "
    "--hostfile hosts --include 'worker-1@worker-2:0,1' train.py\n  zerorun --nnodes 2 --node_rank "
    "0 --master_addr worker-1 train.py       (and 1 on the other)\n  srun --ntasks-per-node=1 "
    "zerorun train.py\n  zerorun --dry_run --num_gpus 2 train\n\nExit code: that of the first rank "
    "that failed; 128 + the signal's number if a signal killed that\nrank or ended the job; 2 for "
    "an invalid command line; 1 for other errors.";

constexpr double kYear = 366.0 * 86400.0;

void add_ranks(CLI::App& app, LaunchOptions& options) {
  const AppOptions table(app, "Ranks");
  RankRequest& request = options.request;
  table.text("--num_gpus,--num_accelerators,--nproc_per_node", request.count, "N",
             "Number of ranks on each host: they use the first N GPUs, or are N CPU ranks. Also "
             "auto (all GPUs; without GPUs one rank per CPU), gpu, cpu, or -1 for the default. "
             "Default: all GPUs; without GPUs one CPU rank per NUMA node");
  app.add_option(
         "-i,--include", request.include,
         "Use only these slots (GPUs or CPU ranks), as in localhost:0,2 or worker-1@worker-2:0; a "
         "host without slots means all its slots. Slots are numbered within CUDA_VISIBLE_DEVICES "
         "if it is set. Duplicates are ignored, and \"\" means no filter")
      ->type_name("HOST:SLOTS");
  app.add_option("-e,--exclude", request.exclude, "Use all slots except these")
      ->type_name("HOST:SLOTS");
  add_accelerator(app, request.accelerator);
  app.add_flag_callback(
      "--no_bind", [&options] { options.cpus.bind = false; },
      "Do not bind each rank to its share of the CPUs");
  table.text("--bind_core_list", options.cpus.list, "CPUS",
             "The CPUs to divide among the ranks of a host, as in 0-3,8");
}

void add_program(CLI::App& app, LaunchOptions& options) {
  const AppOptions table(app, "Program");
  table.flag("-m,--module", options.program.module, "PROGRAM is a Python module (python -m)");
  table.flag("--no_python", options.program.no_python,
             "Execute PROGRAM directly, even if it is a .py file");
  const auto set_local_rank = [&options](const std::string& name) {
    options.program.local_rank = name == "always"  ? LocalRank::always
                                 : name == "never" ? LocalRank::never
                                                   : LocalRank::automatic;
  };
  takes_one_of(app.add_option_function<std::string>(
                   "--local_rank", set_local_rank,
                   "Whether Python programs get the argument --local_rank=N, as from DeepSpeed's "
                   "launcher. Default: auto, only programs whose source mentions it. All programs "
                   "have the variable LOCAL_RANK"),
               {"always", "auto", "never"});
  app.add_flag_callback(
      "--no_local_rank,--use_env", [&options] { options.program.local_rank = LocalRank::never; },
      "Same as --local_rank never");
  table.flag("--deepspeed_compat", options.deepspeed_compat,
             "`import deepspeed` gives zerorun's replacement even if DeepSpeed is installed. If it "
             "is not installed, programs get the replacement without this option");
  table.text("--role", options.request.role, "NAME",
             "Name of these ranks, passed to them as ROLE_NAME, as by torchrun");
}

void add_hosts(CLI::App& app, LaunchOptions& options, RawOptions& raw) {
  const AppOptions table(app, "Hosts");
  HostRequest& hosts = options.hosts;
  table.text("-H,--hostfile", hosts.hostfile, "FILE",
             "File with a line 'HOST slots=N' for each host; '': none. Default: /job/hostfile if "
             "it exists, else only this host");
  table.text("--num_nodes,--nnodes", hosts.count, "N",
             "Use the first N hosts; with MIN:MAX the job continues on fewer hosts if one is lost");
  constexpr int64_t kMaxNodes = 65536;
  table.integer("--node_rank", hosts.node_rank, "N", 0,
                "Number of this host, if you start the command on every host by hand", kMaxNodes);
  table.text(
      "--master_addr", hosts.master_addr, "ADDRESS",
      "Address of the first host. Default: 127.0.0.1; with several hosts the name of the first");
  table.integer("--master_port", hosts.master_port, "PORT", 0,
                "Port on the first host. Default: a free port; 29500 if hosts are started by hand",
                std::numeric_limits<uint16_t>::max());
  table.text("--interface", options.remote.interface, "NAME",
             "Network interface that ranks use to reach other hosts");
  table.text("--local_addr", hosts.local_addr, "ADDRESS",
             "Address at which other hosts reach this host");
  table.flag("--standalone", hosts.standalone, "Use only this host, whatever other options say");
  table.one_of(
      "--rdzv_backend", hosts.backend, {"static", "c10d"},
      "torchrun's rendezvous; both values mean the same here: hosts meet at --rdzv_endpoint");
  table.text("--rdzv_endpoint", hosts.endpoint, "HOST:PORT",
             "Where hosts meet; sets both --master_addr and --master_port");
  table.text("--rdzv_id", hosts.run_id, "NAME",
             "Name of the run, passed to ranks as TORCHELASTIC_RUN_ID");
  table.text("--rdzv_conf", raw.rdzv_conf, "KEY=VALUE,...",
             "timeout=SECONDS: how long to wait for hosts that come late (600)");
}

void add_remote(CLI::App& app, LaunchOptions& options, RawOptions& raw) {
  const AppOptions table(app, "Starting on other hosts");
  HostRequest& hosts = options.hosts;
  RemoteRequest& remote = options.remote;
  table
      .one_of("--launcher", hosts.launcher,
              {"ssh", "pdsh", "slurm", "openmpi", "mpich", "impi", "mvapich", "standard", "nossh"},
              "Program that starts zerorun on the other hosts. Default: ssh; in a Slurm allocation "
              "slurm. mpich, impi and mvapich support one host only")
      ->transform([](const std::string& name) { return CLI::detail::to_lower(name); });
  table.text("--launcher_args", raw.launcher_arguments, "ARGUMENTS",
             "More options for that program, as one word");
  table.integer("--ssh_port", remote.ssh_port, "PORT", 1, "Port of ssh",
                std::numeric_limits<uint16_t>::max());
  app.add_flag_callback(
      "--no_ssh_check", [&remote] { remote.check = false; }, "Do not test ssh to every host first");
  table.flag(
      "--no_ssh", hosts.by_hand,
      "Start nothing on other hosts: you start the same command on every host, with --node_rank");
  table.flag("--force_multi", hosts.force_multi, "Use --launcher even if this is the only host");
  app.add_option_function<std::string>(
         "--export", [&remote](const std::string& name) { remote.exports.push_back(name); },
         "Environment variable to pass to the other hosts; may be repeated. Those of NCCL, UCX, "
         "Python and similar libraries and those in .deepspeed_env are always passed")
      ->type_name("NAME")
      ->trigger_on_parse();
  table.text("--venv_script", remote.venv_script, "FILE",
             "Shell script to source on the other hosts first");
}

void add_failures(CLI::App& app, LaunchOptions& options, RawOptions& raw) {
  const AppOptions table(app, "Failures, signals and waits");
  RestartRequest& restarts = options.restarts;
  constexpr int64_t kMany = 1'000'000;
  table.integer("--max_restarts", restarts.max_restarts, "N", 0,
                "Maximum number of restarts of a job that failed. Default: 0", kMany);
  table.flag("--elastic_training", raw.elastic,
             "As in DeepSpeed: restart up to 100 times, with --min_elastic_nodes to "
             "--max_elastic_nodes hosts");
  table.integer("--min_elastic_nodes", restarts.min_nodes, "N", -1, "Minimum number of hosts",
                kMany);
  table.integer("--max_elastic_nodes", restarts.max_nodes, "N", -1, "Maximum number of hosts",
                kMany);
  table.number("--grace_period,--shutdown_timeout", raw.grace_seconds, "SECONDS", 0.0, 86400.0,
               "Time for ranks to save and exit after Ctrl-C or SIGTERM; a second Ctrl-C kills "
               "them at once. Default: 30");
  table.number("--comm_timeout", options.request.comm_timeout_s, "SECONDS", 1e-3, kYear,
               "How long a rank waits for other ranks before it fails. Default: "
               "zerorun.comm_timeout of the configuration, else 600");
  table.text("--signals_to_handle", raw.signals, "NAMES",
             "Additional signals that end the job, besides SIGTERM,SIGINT,SIGHUP,SIGQUIT");
}

void add_output(CLI::App& app, LaunchOptions& options, RawOptions& raw) {
  const AppOptions table(app, "Output");
  OutputRequest& output = options.output;
  table.text(
      "--log_dir", output.log_dir, "DIR",
      "Append the output of rank R to DIR/rankR.log; only rank 0 also prints to the terminal");
  app.add_option_function<std::string>(
         "--enable_each_rank_log",
         [&output](const std::string& folder) {
           if (folder == "None") return;  // DeepSpeed's default, spelled out
           output.log_dir = folder;
           output.redirects = "3";
         },
         "Same as --log_dir, but rank 0 does not print either")
      ->type_name("DIR");
  table.text("-r,--redirects", output.redirects, "STREAMS",
             "Streams to write only to the log files: 1 (stdout), 2 (stderr), 3 (both), or per "
             "local rank, as in 0:1,1:3");
  table.text("-t,--tee", output.tee, "STREAMS",
             "Streams to write to the log files and to print, in the same notation");
  table.text("--local_ranks_filter", raw.shown_ranks, "RANKS",
             "Print only the output of these local ranks of each host, as in 0,2");
  table.flag("-q,--quiet", output.quiet, "Print only the launcher's errors and warnings");
  table.one_of("--log_level", raw.log_level, {"debug", "info", "warning", "error", "critical"},
               "Level of the launcher's messages; warning and higher levels mean --quiet");
  table.flag("--save_pid", options.save_pid,
             "Write the launcher's process ID to /tmp/PID.deepspeed while the job runs");
  table.flag("--dry_run", options.dry_run,
             "Print each rank's environment, CPUs and command; start nothing");
  table.flag("-h,--help", options.help, "Print this text");
  table.flag("--version", options.version, "Print the version");
}

void add_idle(CLI::App& app, LaunchOptions& options) {
  app.option_defaults()->group("");  // not in the help
  for (const IdleOption& idle : kIdle) {
    const auto add_note = [&options, &idle](const std::string&) {
      if (*idle.note != '\0')
        options.notes.push_back(std::string(idle.name) + " has no meaning here: " + idle.note);
    };
    if (idle.has_value) {
      app.add_option_function<std::string>(idle.name, add_note)->type_name("VALUE");
    } else {
      app.add_flag_callback(idle.name, [add_note] { add_note({}); });
    }
  }
}

}  // namespace

void define_options(CLI::App& app, LaunchOptions& options, RawOptions& raw) {
  app.description(std::string(kDescription));
  app.footer(std::string(kFooter));
  use_plain_help(app);
  app.set_help_flag();  // an option like others, since those of PROGRAM are not the launcher's
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  add_ranks(app, options);
  add_program(app, options);
  add_hosts(app, options, raw);
  add_remote(app, options, raw);
  add_failures(app, options, raw);
  add_output(app, options, raw);
  add_idle(app, options);
  app.option_defaults()->group("Arguments");
  app.add_option("PROGRAM", options.program.name, "Program to run")->type_name("");
  app.add_option("ARGUMENTS", options.program.arguments,
                 "Arguments of PROGRAM, passed on unchanged")
      ->type_name("");
}

std::string_view advice_on_foreign(std::string_view name) {
  for (const ForeignOption& foreign : kForeign) {
    if (name == foreign.name) return foreign.advice;
  }
  return {};
}

}  // namespace zerorun
