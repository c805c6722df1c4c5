#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/environment.h"
#include "launcher/ranks/cpus.h"
#include "zerorun/device.h"

namespace zerorun {

// What a child process said. Questions that may crash or hang are asked there: this process
// survives the answer, and does not initialise the driver before it forks.
struct ChildAnswer {
  std::string text{};
  int status = 0;       // as of waitpid
  bool in_time = true;  // false: it did not end within the patience, and was killed
};
// `answer` runs in the child, writes its text to the descriptor and returns the exit status.
ChildAnswer ask_child(const std::function<int(int out)>& answer, std::chrono::seconds patience);

// How long NVIDIA's driver may take to say something: ZERORUN_DRIVER_TIMEOUT, or 120 s.
std::chrono::seconds driver_patience();

// Why CUDA cannot be used; empty if it can.
struct CudaProblem {
  std::string text{};
  bool driver_fails = false;  // it is there, and no GPU of it can be used
};
CudaProblem ask_for_cuda_problem(std::chrono::seconds patience);

// Lines about CUDA, its libraries and NCCL, or that the driver does not answer.
std::vector<std::string> ask_about_cuda(std::chrono::seconds patience);

// Decides which ranks run on this host, and on which device each: the arithmetic of --num_gpus,
// --include, --exclude, --accelerator and CUDA_VISIBLE_DEVICES. Pure functions, except count_gpus.

// The ranks that the command line requests, as text; empty = not given.
struct RankRequest {
  std::string count{};    // a number, "auto", "gpu" or "cpu"
  std::string include{};  // NODE[:SLOT[,SLOT...]][@NODE...]
  std::string exclude{};
  Accelerator accelerator = Accelerator::automatic;
  std::string role = "default";            // torchrun's name for a group of ranks
  std::optional<double> comm_timeout_s{};  // how long they wait in collectives; or the default
};

// The CPUs and GPUs that this host offers.
struct HostResources {
  std::string name;
  std::vector<std::string> gpus;  // the base set, as CUDA_VISIBLE_DEVICES names them; slot = index
  int cpus = 1;                   // CPUs that this process may use
  int numa_nodes = 1;
  bool own_program = false;                 // the ranks run a program of zerorun's
  CudaProblem cuda_problem{};               // why it cannot use GPUs, if it is one
  bool share_gpus = false;                  // more ranks than GPUs are allowed
  std::string why_no_gpu = "no GPU found";  // where `gpus` is empty
};

struct Selection {
  std::vector<int> slots{};         // one rank each
  std::vector<std::string> gpus{};  // one per slot, unless they share; empty for CPU ranks
  bool none_found = false;          // CPU ranks were not asked for, but this host shows no GPU
  std::string note{};               // a note of one line for the user, or empty

  bool operator==(const Selection&) const = default;
};

// A request for more ranks per host is taken for a typing error.
inline constexpr int kMaxRanksPerHost = 1024;

// The GPUs that CUDA would show to a process. `visible`: CUDA_VISIBLE_DEVICES; nullopt = unset.
// Indices, GPU ids and MIG ids are unchanged. As in CUDA, the list ends at the first invalid entry.
std::vector<std::string> visible_gpus(const std::optional<std::string>& visible,
                                      int gpus_on_machine);

// Throws ConfigError for options that exclude each other. `nodes`: from --num_nodes, 0 = not given.
void check_combination(const RankRequest& request, int nodes);
// The number of ranks per host that the options request; nullopt: all, depending on the host.
// Throws ConfigError for text that is not a number.
std::optional<int> number_of_ranks(const RankRequest& request);

// True if ranks on this host run on GPUs. Throws ConfigError if GPUs are requested and cannot be
// used: by name, or by a number or slots on a host whose driver fails.
bool runs_on_gpus(const RankRequest& request, const HostResources& host);

// Selects the ranks of this host. --include and --exclude select slots of the base set and cannot
// be combined with a count. Without a request: all GPUs, or one CPU rank per NUMA node. Throws
// ConfigError that names a slot, host or count that is not available.
Selection select_ranks(const RankRequest& request, const HostResources& host);
// The devices of given slots. Throws ConfigError for a slot that this host does not have.
Selection take_slots(const std::vector<int>& slots, const RankRequest& request,
                     const HostResources& host);

// The number of GPUs whose device files are visible, whether or not a driver library is installed.
int count_gpus();

// The machine that this launcher runs on, as it is now.
struct ThisHost {
  Environment environment;
  std::vector<Core> cores;
  HostResources resources;
};

// Examines this host. `own_program`: the ranks use zerorun's own CUDA backend, so check that it
// works if GPUs may be used. `core_list` limits the CPUs; empty = all that this process may use.
// Throws ConfigError if it names a CPU that this process may not use.
ThisHost look_at_this_host(Accelerator accelerator, bool own_program, const std::string& core_list);

}  // namespace zerorun
