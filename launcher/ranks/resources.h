#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "zerorun/device.h"

namespace zerorun {

// Decides which ranks run on this host, and on which device each: the arithmetic of --num_gpus,
// --include, --exclude, --accelerator and CUDA_VISIBLE_DEVICES. Pure functions, except count_gpus.

// The ranks that the command line asks for, as text; empty = not given.
struct RankRequest {
  std::string count{};    // a number, "auto", "gpu" or "cpu"
  std::string include{};  // NODE[:SLOT[,SLOT...]][@NODE...]
  std::string exclude{};
  Accelerator accelerator = Accelerator::automatic;
};

// The CPUs and GPUs that this host offers.
struct HostResources {
  std::string name;
  std::vector<std::string> gpus;  // the base set, as CUDA_VISIBLE_DEVICES names them; slot = index
  int cpus = 1;                   // that this process may use
  int numa_nodes = 1;
  std::string cuda_problem{};  // why zerorun's own programs, if it is one, cannot use GPUs
  bool share_gpus = false;     // more ranks than GPUs are allowed
};

struct Selection {
  std::vector<int> slots{};         // one rank each
  std::vector<std::string> gpus{};  // one per slot, unless they share; empty for CPU ranks
  std::string note{};               // what the user should know in one line, or empty

  bool operator==(const Selection&) const = default;
};

// More ranks than this on one host is a typing error.
inline constexpr int kMaxRanksPerHost = 1024;

// The GPUs that CUDA would show a process: `visible` is CUDA_VISIBLE_DEVICES (nothing = unset).
// Indices, GPU- and MIG- ids stay as they are; as in CUDA, the list ends at the first invalid
// entry.
std::vector<std::string> visible_gpus(const std::optional<std::string>& visible,
                                      int gpus_on_machine);

// Throws ConfigError for options that exclude each other. `nodes`: of --num_nodes, 0 = not given.
void check_combination(const RankRequest& request, int nodes);
// The number of ranks per host that the options name, or nothing: all, by whatever the host has.
// Throws ConfigError for text that is no number.
std::optional<int> number_of_ranks(const RankRequest& request);

// True if ranks here run on GPUs. Throws ConfigError when they are asked for and cannot.
bool runs_on_gpus(const RankRequest& request, const HostResources& host);

// --include and --exclude pick slots of the base set; they and a count exclude each other. Without
// a request: all GPUs, or one CPU rank per NUMA node. Throws ConfigError naming the slot, host or
// count that cannot be had.
Selection select_ranks(const RankRequest& request, const HostResources& host);
// The devices of slots that are decided. Throws ConfigError for one that this host has not.
Selection take_slots(const std::vector<int>& slots, const RankRequest& request,
                     const HostResources& host);

// GPUs whose device files are visible here, whether or not a driver library is installed.
int count_gpus();

}  // namespace zerorun
