#include "config/env.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "core/check.h"
#include "core/printable.h"

namespace zerorun {

namespace {

constexpr auto kVariables = std::to_array<EnvironmentVariable>({
    {"RANK", "global rank of this process"},
    {"WORLD_SIZE", "number of ranks in the job"},
    {"LOCAL_RANK", "rank among the ranks of this host"},
    {"LOCAL_WORLD_SIZE", "number of ranks on this host"},
    {"MASTER_ADDR", "host on which rank 0 listens for its peers"},
    {"MASTER_PORT", "port on which rank 0 listens for its peers"},
    {"OMP_NUM_THREADS", "threads of one rank; the launcher divides the cores when it is unset"},
    {"CUDA_VISIBLE_DEVICES", "base set of GPUs; --include and --exclude select within it"},
    {"ZERORUN_JOB_SECRET", "shared by the ranks of one job; peers that do not know it are dropped"},
    {"ZERORUN_SHARE_GPUS",
     "1: more ranks than GPUs may run, sharing them; nccl: through NCCL all the same; 0: no; for "
     "tests"},
    {"ZERORUN_COMM_TIMEOUT",
     "seconds after which a wait for other ranks is an error, instead of zerorun.comm_timeout"},
    {"ZERORUN_STALL_FILE",
     "where a job that stands still writes what its ranks do, as JSON; the launcher sets it with "
     "--log_dir. Default: a new file in the folder of temporary files"},
    {"GLOO_SOCKET_IFNAME",
     "of Gloo: the network interface, or this host's address, of CPU ranks' traffic with other "
     "hosts"},
    {"ZERORUN_STORE_FD",
     "set by the launcher for rank 0: the socket that holds MASTER_PORT for it"},
    {"ZERORUN_RESTART_REASON",
     "set by the launcher after a restart: what had failed, as in 'rank 1 on host-b failed with "
     "exit code 3'"},
    {"TORCHELASTIC_RESTART_COUNT",
     "set by launchers: how often the job was started again; then train goes on from its last "
     "checkpoint"},
    {"TORCHELASTIC_RUN_ID", "set by launchers: the name of the run (--rdzv_id)"},
    {"ZERORUN_COMPAT", "0: the deepspeed module of zerorun is not put in front of programs"},
    {"ZERORUN_PYTHON",
     "the python that runs Python programs; a wheel's command sets it to that of its environment"},
    {"PATH", "where the launcher looks for programs"},
    {"VIRTUAL_ENV", "without ZERORUN_PYTHON: the environment whose python runs Python programs"},
    {"PYTHONPATH", "extended with the working directory for Python programs"},
    {"HOME", "the user's directory"},
    {"TMPDIR", "folder of temporary files, such as the report of a job that stands still"},
    {"NCCL_LAUNCH_ORDER_IMPLICIT", "of NCCL; set to 1 for jobs with GPUs when it is unset"},
    {"CUDA_DEVICE_MAX_CONNECTIONS", "of CUDA; set to 32 for jobs with GPUs when it is unset"},
    {"TORCHELASTIC_USE_AGENT_STORE", "True: torchrun serves the store at which Python ranks meet"},
    {"LOCAL_SIZE", "of DeepSpeed's launcher: the same as LOCAL_WORLD_SIZE"},
    {"PET_NPROC_PER_NODE",
     "of Kubernetes' PyTorchJob: the ranks of a pod. The launcher takes all of torchrun's PET_*"},
    {"DS_ENV_FILE", "another name for .deepspeed_env, whose variables go to all hosts of a job"},
    {"DEEPSPEED_ELASTICITY_CONFIG",
     "of schedulers of elastic jobs: the section elasticity that they count by, as JSON; another "
     "one in the configuration is an error"},
    {"SLURM_JOB_ID", "of Slurm: the allocation; the port at which ranks meet comes from it"},
    {"SLURM_JOB_NODELIST", "of Slurm: the hosts of the allocation"},
    {"SLURM_NODELIST", "of Slurm: an older name for that"},
    {"SLURM_TASKS_PER_NODE", "of Slurm: how many tasks each host has"},
    {"SLURM_NTASKS", "of Slurm: the number of tasks, which are ranks where srun starts them"},
    {"SLURM_STEP_ID", "of Slurm: a number for what srun has started"},
    {"SLURM_STEP_NUM_TASKS", "of Slurm: the tasks of that"},
    {"SLURM_STEP_NODELIST", "of Slurm: its hosts; rank 0 is on the first"},
    {"SLURM_STEP_TASKS_PER_NODE", "of Slurm: how many of its tasks each host has"},
    {"SLURM_PROCID", "of Slurm: the number of this task"},
    {"SLURM_LOCALID", "of Slurm: its number on its host"},
    {"SLURM_NODEID", "of Slurm: the number of this host among those of the step"},
    {"SLURMD_NODENAME", "of Slurm: its name for this host"},
    {"OMPI_COMM_WORLD_RANK", "of Open MPI: the number of this process"},
    {"OMPI_COMM_WORLD_SIZE", "of Open MPI: the number of processes"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", "of Open MPI: the number of this process on its host"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", "of Open MPI: the processes on this host"},
    {"MV2_COMM_WORLD_RANK", "of MVAPICH, as the four of Open MPI"},
    {"MV2_COMM_WORLD_SIZE", "of MVAPICH"},
    {"MV2_COMM_WORLD_LOCAL_RANK", "of MVAPICH"},
    {"MV2_COMM_WORLD_LOCAL_SIZE", "of MVAPICH"},
    {"PMI_RANK", "of MPICH and Intel MPI: the number of this process"},
    {"PMI_SIZE", "of MPICH and Intel MPI: the number of processes"},
    {"PMIX_RANK", "of PMIx: the number of this process"},
    {"MPI_LOCALRANKID", "of MPICH and Intel MPI: the number of this process on its host"},
    {"MPI_LOCALNRANKS", "of MPICH and Intel MPI: the processes on this host"},
    {"PALS_LOCAL_RANKID", "of Cray's PALS: the number of this process on its host"},
    {"PMIX_NAMESPACE", "of PMIx: the name of the job; the port at which ranks meet comes from it"},
    {"PMI_JOBID", "of MPICH: the name of the job, as that of PMIx"},
});

}  // namespace

std::span<const EnvironmentVariable> environment_variables() { return kVariables; }

void check_in_table(std::string_view name) {
  const auto known = std::find_if(kVariables.begin(), kVariables.end(),
                                  [&](const auto& variable) { return variable.name == name; });
  ZR_CHECK(known != kVariables.end(), "environment variable {} is not in the table", name);
}

std::map<std::string, std::string> inherited_environment() {
  std::map<std::string, std::string> environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

std::optional<std::string> read_environment(std::string_view name) {
  check_in_table(name);
  const char* value = std::getenv(std::string(name).c_str());
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

bool hides_all_gpus() {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible != nullptr && *visible == '\0';
}

bool is_on(std::string_view value) { return !value.empty() && value != "0"; }

void check_thread_count(std::string_view value) {
  // More hinder each other so much that a run seems to stand still.
  const int max_threads = std::max(256, 16 * static_cast<int>(std::thread::hardware_concurrency()));
  if (value.empty()) return;
  std::string_view rest = value;
  while (true) {
    const std::string_view part = rest.substr(0, rest.find(','));
    int threads = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), threads);
    if (error != std::errc() || end != part.data() + part.size() || threads < 1 ||
        threads > max_threads) {
      fail<ConfigError>(
          "environment variable OMP_NUM_THREADS='{}': expected a number of threads from 1 to {}",
          value, max_threads);
    }
    if (part.size() == rest.size()) return;
    rest.remove_prefix(part.size() + 1);
  }
}

std::optional<long> read_environment_int(std::string_view name, long low, long high) {
  const std::optional<std::string> text = read_environment(name);
  if (!text) return std::nullopt;
  return parse_environment_int(name, *text, low, high);
}

long parse_environment_int(std::string_view name, std::string_view text, long low, long high) {
  long value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    fail<ConfigError>("environment variable {}='{}': expected an integer from {} to {}", name,
                      printable(text), low, high);
  }
  return value;
}

std::chrono::milliseconds comm_timeout(std::chrono::milliseconds configured) {
  constexpr double kMaxSeconds = 1e6;
  const std::optional<std::string> text = read_environment("ZERORUN_COMM_TIMEOUT");
  if (!text) return configured;
  double seconds = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), seconds);
  if (error != std::errc() || end != text->data() + text->size() || !(seconds > 0) ||
      seconds > kMaxSeconds) {
    fail<ConfigError>(
        "environment variable ZERORUN_COMM_TIMEOUT='{}': expected seconds, a number "
        "above 0 and at most {:.0f}",
        printable(*text), kMaxSeconds);
  }
  return std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(seconds));
}

}  // namespace zerorun
