#include "config/env.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "core/check.h"
#include "core/parse_number.h"
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
    {"OMP_NUM_THREADS",
     "number of threads of a rank; if it is unset, the launcher divides the cores among the ranks"},
    {"CUDA_VISIBLE_DEVICES", "GPUs that a job may use; --include and --exclude select among them"},
    {"ZERORUN_JOB_SECRET", "secret of a job; connections of peers that do not know it are dropped"},
    {"ZERORUN_SHARE_GPUS",
     "for tests. 1: allow more ranks than GPUs, which then share GPUs; nccl: the same, and "
     "communicate through NCCL; 0: do not allow it"},
    {"ZERORUN_DRIVER_TIMEOUT",
     "seconds that the launcher, env and doctor wait for NVIDIA's driver to answer (120)"},
    {"ZERORUN_COMM_TIMEOUT",
     "timeout in seconds of waits for other ranks; overrides zerorun.comm_timeout"},
    {"ZERORUN_STALL_FILE",
     "file for the report of a stalled job: what each rank is doing, as JSON. The launcher sets it "
     "with --log_dir. Default: a new file in the folder for temporary files"},
    {"GLOO_SOCKET_IFNAME",
     "of Gloo: network interface, or address of this host, that CPU ranks use to reach other "
     "hosts"},
    {"ZERORUN_STORE_FD",
     "set by the launcher for rank 0: descriptor of the socket that is bound to MASTER_PORT"},
    {"ZERORUN_RESTART_REASON",
     "set by the launcher after a restart: the failure that caused it, as in 'rank 1 on host-b "
     "failed with exit code 3'"},
    {"TORCHELASTIC_RESTART_COUNT",
     "set by launchers: number of restarts of the job; if it is not 0, train resumes from its last "
     "checkpoint"},
    {"TORCHELASTIC_RUN_ID", "set by launchers: name of the run (--rdzv_id)"},
    {"ZERORUN_COMPAT", "0: `import deepspeed` never gives zerorun's replacement"},
    {"ZERORUN_PYTHON",
     "path of the Python that runs Python programs; the command of a wheel sets it to that of its "
     "environment"},
    {"PATH", "folders in which the launcher looks for programs"},
    {"VIRTUAL_ENV",
     "without ZERORUN_PYTHON: the virtual environment whose Python runs Python programs"},
    {"PYTHONPATH", "for Python programs; the launcher adds the working directory"},
    {"HOME", "home directory of the user"},
    {"TMPDIR", "folder for temporary files, such as the report of a stalled job"},
    {"NCCL_LAUNCH_ORDER_IMPLICIT",
     "of NCCL; if it is unset, zerorun sets it to 1, so that communicators of one GPU launch in "
     "the program's order"},
    {"NCCL_COMM_BLOCKING",
     "of NCCL; GPU jobs refuse it, as NCCL would let it take the place of what zerorun asks for"},
    {"CUDA_DEVICE_MAX_CONNECTIONS",
     "of CUDA; if it is unset, the launcher sets it to 32 for jobs with GPUs"},
    {"TORCHELASTIC_USE_AGENT_STORE", "True: the ranks meet at the store that torchrun provides"},
    {"LOCAL_SIZE", "of DeepSpeed's launcher: same as LOCAL_WORLD_SIZE"},
    {"PET_NPROC_PER_NODE",
     "of Kubernetes' PyTorchJob: number of ranks of a pod. The launcher reads all of torchrun's "
     "PET_* variables"},
    {"DS_ENV_FILE",
     "name of the file to use as .deepspeed_env, whose variables are passed to all hosts of a job"},
    {"DEEPSPEED_ELASTICITY_CONFIG",
     "of schedulers of elastic jobs: the section elasticity that they use, as JSON; a different "
     "section in the configuration is an error"},
    {"SLURM_JOB_ID", "of Slurm: ID of the allocation; determines the port at which ranks meet"},
    {"SLURM_JOB_NODELIST", "of Slurm: the hosts of the allocation"},
    {"SLURM_NODELIST", "of Slurm: older name of SLURM_JOB_NODELIST"},
    {"SLURM_TASKS_PER_NODE", "of Slurm: number of tasks of each host"},
    {"SLURM_NTASKS", "of Slurm: number of tasks, which are ranks if srun starts them"},
    {"SLURM_STEP_ID", "of Slurm: ID of the job step that srun started"},
    {"SLURM_STEP_NUM_TASKS", "of Slurm: number of tasks of the step"},
    {"SLURM_STEP_NODELIST", "of Slurm: hosts of the step; rank 0 is on the first"},
    {"SLURM_STEP_TASKS_PER_NODE", "of Slurm: number of tasks of the step on each host"},
    {"SLURM_PROCID", "of Slurm: the number of this task"},
    {"SLURM_LOCALID", "of Slurm: number of this task on its host"},
    {"SLURM_NODEID", "of Slurm: the number of this host among those of the step"},
    {"SLURMD_NODENAME", "of Slurm: name of this host"},
    {"OMPI_COMM_WORLD_RANK", "of Open MPI: the number of this process"},
    {"OMPI_COMM_WORLD_SIZE", "of Open MPI: the number of processes"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", "of Open MPI: the number of this process on its host"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", "of Open MPI: the processes on this host"},
    {"MV2_COMM_WORLD_RANK", "of MVAPICH: the number of this process"},
    {"MV2_COMM_WORLD_SIZE", "of MVAPICH: the number of processes"},
    {"MV2_COMM_WORLD_LOCAL_RANK", "of MVAPICH: the number of this process on its host"},
    {"MV2_COMM_WORLD_LOCAL_SIZE", "of MVAPICH: the processes on this host"},
    {"PMI_RANK", "of MPICH and Intel MPI: the number of this process"},
    {"PMI_SIZE", "of MPICH and Intel MPI: the number of processes"},
    {"PMIX_RANK", "of PMIx: the number of this process"},
    {"MPI_LOCALRANKID", "of MPICH and Intel MPI: the number of this process on its host"},
    {"MPI_LOCALNRANKS", "of MPICH and Intel MPI: the processes on this host"},
    {"PALS_LOCAL_RANKID", "of Cray's PALS: the number of this process on its host"},
    {"PMIX_NAMESPACE", "of PMIx: name of the job; determines the port at which ranks meet"},
    {"PMI_JOBID", "of MPICH: name of the job; used like PMIX_NAMESPACE"},
});

}  // namespace

std::span<const EnvironmentVariable> environment_variables() { return kVariables; }

void check_in_table(std::string_view name) {
  const auto known = std::ranges::find(kVariables, name, &EnvironmentVariable::name);
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

void default_environment(const char* name, const char* value) {
  check_in_table(name);
  setenv(name, value, /*overwrite=*/0);
}

bool hides_all_gpus() {
  const char* text = std::getenv("CUDA_VISIBLE_DEVICES");
  if (text == nullptr) return false;
  std::string_view visible = text;
  visible.remove_prefix(std::min(visible.find_first_not_of(' '), visible.size()));
  const bool number = !visible.empty() && visible.front() >= '0' && visible.front() <= '9';
  return !number && !visible.starts_with("GPU-") && !visible.starts_with("MIG-");
}

bool is_on(std::string_view value) { return !value.empty() && value != "0"; }

void check_thread_count(std::string_view value) {
  // With more threads a run is so slow that it seems to hang.
  const int max_threads = std::max(256, 16 * static_cast<int>(std::thread::hardware_concurrency()));
  if (value.empty()) return;
  std::string_view rest = value;
  while (true) {
    const std::string_view part = rest.substr(0, rest.find(','));
    if (!parse_number(part, 1, max_threads)) {
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
  const std::optional<long> value = parse_number(text, low, high);
  if (!value) {
    fail<ConfigError>("environment variable {}='{}': expected an integer from {} to {}", name,
                      printable(text), low, high);
  }
  return *value;
}

std::chrono::milliseconds comm_timeout(std::chrono::milliseconds configured) {
  constexpr double kMaxSeconds = 1e6;
  const std::optional<std::string> text = read_environment("ZERORUN_COMM_TIMEOUT");
  if (!text) return configured;
  const std::optional<double> seconds = parse_number(*text, 0.0, kMaxSeconds);
  if (!seconds || *seconds == 0) {
    fail<ConfigError>(
        "environment variable ZERORUN_COMM_TIMEOUT='{}': expected seconds, a number "
        "above 0 and at most {:.0f}",
        printable(*text), kMaxSeconds);
  }
  return std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(*seconds));
}

}  // namespace zerorun
