#include "launcher/hosts/choose_cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>

#include "comm/rendezvous/slurm.h"
#include "config/env.h"
#include "core/check.h"
#include "core/parse_number.h"
#include "core/printable.h"
#include "launcher/hosts/address.h"
#include "launcher/hosts/host_filter.h"
#include "launcher/hosts/hostfile.h"
#include "launcher/words.h"
#include "os/address.h"

namespace zerorun {

namespace {

constexpr uint16_t kDefaultPort = 29500;  // DeepSpeed's and torchrun's
constexpr const char* kDefaultHostfile = "/job/hostfile";
constexpr int kMaxNodes = 65536;

std::string variable(const ThisHost& here, const std::string& name) {
  return find_variable(here.environment, name).value_or("");
}

// An integer of the environment, or nothing when it is unset or empty.
std::optional<int> number(const ThisHost& here, const std::string& name, int low, int high) {
  const std::string text = variable(here, name);
  if (text.empty()) return std::nullopt;
  return static_cast<int>(parse_environment_int(name, text, low, high));
}

int node_number(std::string_view option, const std::string& text, std::string_view part) {
  const std::optional<int> nodes = parse_number(part);
  if (!nodes || *nodes < 1 || *nodes > kMaxNodes) {
    fail<ConfigError>("{} '{}': expected a number of hosts, or MIN:MAX", option, printable(text));
  }
  return *nodes;
}

// The numbers of hosts that the command line allows; `given` is false where it says nothing.
struct NodeRange {
  int min = 1;
  int max = 1;
  bool given = false;
};

NodeRange parse_node_range(const LaunchOptions& options) {
  const std::string& text = options.hosts.count;
  NodeRange range;
  if (!text.empty() && text != "-1") {
    const std::string_view all = text;
    const size_t colon = std::min(all.find(':'), all.size());
    range.min = node_number("--nnodes (--num_nodes)", text, all.substr(0, colon));
    range.max = colon == all.size()
                    ? range.min
                    : node_number("--nnodes (--num_nodes)", text, all.substr(colon + 1));
    range.given = true;
  }
  if (options.restarts.min_nodes > 0) range.min = options.restarts.min_nodes;
  if (options.restarts.max_nodes > 0) {
    range.max = options.restarts.max_nodes;
    range.given = true;
  }
  if (range.min > range.max) {
    fail<ConfigError>("the least number of hosts, {}, is above the greatest, {}", range.min,
                      range.max);
  }
  return range;
}

// How launchers on other hosts are started, by --launcher.
RemoteStart remote_start(const std::string& launcher, RemoteStart standard) {
  if (launcher.empty()) return standard;
  if (launcher == "ssh") return RemoteStart::ssh;
  if (launcher == "pdsh") return RemoteStart::pdsh;
  if (launcher == "slurm") return RemoteStart::slurm;
  if (launcher == "openmpi") return RemoteStart::openmpi;
  fail<ConfigError>(
      "--launcher {}: zerorun starts the ranks of each host itself, and the hosts with ssh, pdsh, "
      "slurm or openmpi; under {}'s own mpirun start the program itself, without zerorun",
      launcher, launcher);
}

bool is_by_hand(const HostRequest& hosts) {
  return hosts.by_hand || hosts.node_rank || hosts.launcher == "nossh" ||
         hosts.launcher == "standard";
}

// The hosts of a hostfile or an allocation, and which of them is this one.
struct Pool {
  std::vector<HostSlots> hosts;
  RemoteStart start = RemoteStart::ssh;
  std::optional<std::string> own{};
};

// By name, else by address: names cost no look-up.
std::optional<std::string> find_own(const std::vector<HostSlots>& hosts, const ThisHost& here) {
  const std::string slurm_name = variable(here, "SLURMD_NODENAME");
  for (const HostSlots& host : hosts) {
    if (is_this_host(host.host, here.resources.name) || host.host == slurm_name) return host.host;
  }
  for (const HostSlots& host : hosts) {
    if (is_own_address(host.host)) return host.host;
  }
  return std::nullopt;
}

std::optional<Pool> pool_of_hostfile(const LaunchOptions& options, const ThisHost& here,
                                     std::string& note) {
  std::string path = options.hosts.hostfile.value_or("");
  std::error_code error;
  if (!options.hosts.hostfile && std::filesystem::exists(kDefaultHostfile, error)) {
    path = kDefaultHostfile;
  }
  if (path.empty()) return std::nullopt;
  auto hosts = read_hostfile(path);
  if (!hosts) {
    note = fmt::format("hostfile {} does not exist", printable(path));
    return std::nullopt;
  }
  Pool pool = {.hosts = *std::move(hosts)};
  pool.own = find_own(pool.hosts, here);
  return pool;
}

// The hosts of an allocation of Slurm, for a command in its batch script or shell.
std::optional<Pool> pool_of_allocation(const ThisHost& here) {
  const std::string nodes = variable(here, "SLURM_JOB_NODELIST");
  if (variable(here, "SLURM_JOB_ID").empty() || nodes.empty()) return std::nullopt;
  Pool pool = {.hosts = {}, .start = RemoteStart::slurm};
  for (std::string& name : expand_host_list(nodes)) pool.hosts.push_back({std::move(name), {}});
  const std::string tasks = variable(here, "SLURM_TASKS_PER_NODE");
  if (!tasks.empty() && here.resources.gpus.empty()) {
    // One task a node is what scripts ask for that start a launcher there: the node decides.
    const std::vector<int> counts = expand_task_counts(tasks);
    for (size_t i = 0; i < std::min(counts.size(), pool.hosts.size()); ++i) {
      if (counts[i] > 1) pool.hosts[i].slots = first_slots(counts[i]);
    }
  }
  pool.own = find_own(pool.hosts, here);
  return pool;
}

ClusterChoice this_host_alone(const LaunchOptions& options, const ThisHost& here,
                              const std::vector<int>& slots) {
  ClusterChoice choice;
  HostSlots host = {.host = here.resources.name, .slots = slots};
  if (slots.empty()) host.slots = select_ranks(options.request, here.resources).slots;
  choice.cluster.hosts = {std::move(host)};
  return choice;
}

// The first host as the others reach it: they do not by a name that every machine has for itself.
std::string first_address(const std::vector<HostSlots>& hosts) {
  if (hosts.size() == 1 || !is_loopback(hosts.front().host)) return hosts.front().host;
  try {
    return own_address_towards(hosts[1].host);
  } catch (const CommError& error) {
    fail<ConfigError>(
        "the first host is '{}', which means another machine on host '{}': name it by its address "
        "({})",
        hosts.front().host, hosts[1].host, error.what());
  }
}

// The endpoint that --rdzv_endpoint, --master_addr or MASTER_ADDR names; an empty host if none.
Endpoint given_endpoint(const HostRequest& hosts, const ThisHost& here) {
  const uint16_t port = hosts.master_port;
  if (!hosts.endpoint.empty()) return parse_endpoint("--rdzv_endpoint", hosts.endpoint, port);
  if (!hosts.master_addr.empty()) return {.host = hosts.master_addr, .port = port};
  if (variable(here, "RANK").empty() && !variable(here, "MASTER_ADDR").empty()) {
    const int given = number(here, "MASTER_PORT", 0, kMaxPort).value_or(0);
    return {.host = variable(here, "MASTER_ADDR"),
            .port = port != 0 ? port : static_cast<uint16_t>(given)};
  }
  return {.host = {}, .port = port};
}

// The others cannot reach the first host at an address that is not its own.
void check_endpoint(const Endpoint& endpoint, const std::vector<HostSlots>& hosts) {
  const std::string& first = hosts.front().host;
  const bool of_another = std::any_of(hosts.begin() + 1, hosts.end(), [&](const HostSlots& host) {
    return host.host == endpoint.host;
  });
  if (!is_loopback(endpoint.host) && !of_another) return;
  fail<ConfigError>(
      "the job's {} hosts are to meet at {} (--master_addr, --rdzv_endpoint, MASTER_ADDR), {}; "
      "expected an address of the first host, {}, at which the others reach it; that is what is "
      "taken where none is given",
      hosts.size(), endpoint.host,
      of_another ? "which is another host of the job than the first"
                 : "an address that every host has for itself",
      first);
}

// What to say on the first host of an address that is not its own; empty if it is.
std::string note_of_foreign(const Endpoint& endpoint) {
  if (is_own_address(endpoint.host)) return {};
  return fmt::format(
      "the hosts are to meet at {} (--master_addr, --rdzv_endpoint, MASTER_ADDR), which is no "
      "address of this host, the first (--node_rank 0): they wait unless something forwards it",
      endpoint.host);
}

ClusterChoice from_pool(const LaunchOptions& options, const ThisHost& here, const Pool& pool,
                        const NodeRange& range) {
  const std::string& own = pool.own.value_or(here.resources.name);
  const int available = static_cast<int>(pool.hosts.size());
  // With a range as many as there are; fewer than its least are an error of select_hosts.
  const int nodes = range.given ? std::max(range.min, std::min(range.max, available)) : 0;
  std::vector<HostSlots> hosts = select_hosts(pool.hosts, options.request, nodes, own);
  const auto found =
      std::find_if(hosts.begin(), hosts.end(), [&](const auto& host) { return host.host == own; });
  if (hosts.size() == 1 && found != hosts.end() && !options.hosts.force_multi) {
    LaunchOptions local = options;
    if (hosts.front().slots.empty()) local.request.include = local.request.exclude = "";
    return this_host_alone(local, here, hosts.front().slots);
  }
  ClusterChoice choice;
  Cluster& cluster = choice.cluster;
  cluster.node_rank = found == hosts.end() ? -1 : static_cast<int>(found - hosts.begin());
  cluster.start = remote_start(options.hosts.launcher, pool.start);
  if (cluster.node_rank >= 0 && found->slots.empty()) {
    LaunchOptions local = options;
    local.request.include = local.request.exclude = "";
    found->slots = select_ranks(local.request, here.resources).slots;
  }
  const Endpoint endpoint = given_endpoint(options.hosts, here);
  if (!endpoint.host.empty() && hosts.size() > 1) check_endpoint(endpoint, hosts);
  if (cluster.node_rank == 0 && !endpoint.host.empty()) choice.note = note_of_foreign(endpoint);
  cluster.endpoint_host = endpoint.host.empty() ? first_address(hosts) : endpoint.host;
  cluster.endpoint_port = endpoint.port;
  // The launcher that serves the port takes a free one, unless it is another one than this.
  if (cluster.endpoint_port == 0 && cluster.node_rank != 0) {
    cluster.endpoint_port = pool.start == RemoteStart::slurm ? slurm_port() : kDefaultPort;
  }
  cluster.hosts = std::move(hosts);
  return choice;
}

// The number of this host where somebody starts the launcher on every host and gives it none.
int guess_node_rank(const Endpoint& endpoint, int nodes) {
  if (const auto step = slurm_step(); step && step->tasks > 1) return step->node;
  if (is_own_address(endpoint.host)) return 0;
  return nodes == 2 ? 1 : -1;
}

ClusterChoice by_hand(const LaunchOptions& options, const ThisHost& here,
                      std::vector<HostSlots> hosts) {
  const int nodes = static_cast<int>(hosts.size());
  Endpoint endpoint = given_endpoint(options.hosts, here);
  if (endpoint.host.empty()) endpoint.host = hosts.front().host;
  if (endpoint.host.empty()) {
    fail<ConfigError>(
        "{} hosts need an address to meet at: give --master_addr, that of the first host, or "
        "--rdzv_endpoint HOST:PORT, the same on all hosts",
        nodes);
  }
  if (endpoint.port == 0) endpoint.port = kDefaultPort;
  ClusterChoice choice;
  Cluster& cluster = choice.cluster;
  cluster.start = RemoteStart::by_hand;
  cluster.coordinates = false;
  cluster.node_rank = options.hosts.node_rank.value_or(guess_node_rank(endpoint, nodes));
  if (cluster.node_rank >= nodes) {
    fail<ConfigError>("--node_rank {}: the job has {} hosts, numbered from 0 to {}",
                      cluster.node_rank, nodes, nodes - 1);
  }
  cluster.endpoint_host = endpoint.host;
  cluster.endpoint_port = endpoint.port;
  if (is_loopback(endpoint.host)) {
    choice.note = fmt::format(
        "the launchers meet at {}, which every machine has for itself: hosts other than this one "
        "cannot come; --master_addr names the first host",
        endpoint.host);
  } else if (cluster.node_rank == 0) {
    choice.note = note_of_foreign(endpoint);
  }
  if (hosts.front().host.empty()) hosts.front().host = endpoint.host;
  if (cluster.node_rank >= 0) {
    HostSlots& own = hosts[static_cast<size_t>(cluster.node_rank)];
    if (!options.hosts.local_addr.empty()) own.host = options.hosts.local_addr;
    if (own.host.empty()) own.host = here.resources.name;
    if (own.slots.empty()) own.slots = select_ranks(options.request, here.resources).slots;
  }
  cluster.hosts = std::move(hosts);
  return choice;
}

[[noreturn]] void refuse_tasks(std::string_view starter, int launchers, std::string_view per_node) {
  fail<ConfigError>(
      "{} has started {} launchers of zerorun, more than one on a host: start one per host ({}), "
      "which starts the ranks there; or start the program itself without zerorun, one task per "
      "rank",
      starter, launchers, per_node);
}

// The launcher is itself a task of srun or a process of mpirun: one of those on every host.
std::optional<ClusterChoice> within_step(const LaunchOptions& options, const ThisHost& here) {
  const auto step = slurm_step();
  if (step && step->tasks > 1) {
    if (static_cast<size_t>(step->tasks) != step->hosts.size()) {
      refuse_tasks("srun", step->tasks, "srun --ntasks-per-node=1 zerorun ...");
    }
    std::vector<HostSlots> hosts;
    for (const std::string& name : step->hosts) hosts.push_back({name, {}});
    LaunchOptions numbered = options;
    numbered.hosts.node_rank = step->node;
    if (numbered.hosts.master_port == 0) numbered.hosts.master_port = slurm_port();
    return by_hand(numbered, here, std::move(hosts));
  }
  const int processes = number(here, "OMPI_COMM_WORLD_SIZE", 1, kMaxNodes).value_or(1);
  if (processes == 1) return std::nullopt;
  if (number(here, "OMPI_COMM_WORLD_LOCAL_SIZE", 1, kMaxNodes).value_or(1) > 1) {
    refuse_tasks("mpirun", processes, "mpirun --map-by ppr:1:node zerorun ...");
  }
  LaunchOptions numbered = options;
  numbered.hosts.node_rank = number(here, "OMPI_COMM_WORLD_RANK", 0, processes - 1);
  return by_hand(numbered, here, std::vector<HostSlots>(static_cast<size_t>(processes)));
}

ClusterChoice choose_hosts(const LaunchOptions& options, const ThisHost& here,
                           const NodeRange& range) {
  if (options.hosts.standalone) return this_host_alone(options, here, {});
  std::string note;
  const std::optional<Pool> pool = pool_of_hostfile(options, here, note);
  const bool hand = is_by_hand(options.hosts) || (range.max > 1 && !options.hosts.endpoint.empty());
  if (hand && pool) {
    const std::string& own = pool->own.value_or(here.resources.name);
    const std::vector<HostSlots> hosts =
        select_hosts(pool->hosts, options.request, range.given ? range.max : 0, own);
    if (hosts.size() > 1) return by_hand(options, here, hosts);
  } else if (hand && range.max > 1) {
    return by_hand(options, here, std::vector<HostSlots>(static_cast<size_t>(range.max)));
  } else if (hand && options.hosts.node_rank.value_or(0) > 0) {
    fail<ConfigError>("--node_rank {}: the job has one host, 0; --nnodes says how many there are",
                      *options.hosts.node_rank);
  }
  if (pool) {
    const auto step = slurm_step();
    if (step && step->tasks > 1 && variable(here, "RANK").empty()) {
      fail<ConfigError>(
          "srun has started {} launchers, and each would start the whole job on the hosts of the "
          "hostfile: leave --hostfile out, or start zerorun once, without srun",
          step->tasks);
    }
    return from_pool(options, here, *pool, range);
  }
  const bool one = range.given && range.max == 1;
  // A program that a rank starts is no part of the rank's own job.
  if (!one && variable(here, "RANK").empty()) {
    if (auto within = within_step(options, here)) return *within;
  }
  if (!one && variable(here, "RANK").empty() && !slurm_step()) {
    if (const auto allocated = pool_of_allocation(here)) {
      return from_pool(options, here, *allocated, range);
    }
  }
  if (range.min > 1) {
    fail<ConfigError>(
        "--num_nodes {}: {}, so no host but this one is known; name them in a --hostfile, or start "
        "this command on every host with --node_rank R and --master_addr",
        options.hosts.count, note.empty() ? "there is no hostfile" : note);
  }
  ClusterChoice choice = this_host_alone(options, here, {});
  if (!note.empty()) choice.note = note + ": ranks run on this host alone";
  return choice;
}

}  // namespace

ClusterChoice choose_cluster(const LaunchOptions& options, const ThisHost& here) {
  const NodeRange range = parse_node_range(options);
  ClusterChoice choice = choose_hosts(options, here, range);
  Cluster& cluster = choice.cluster;
  cluster.max_hosts = static_cast<int>(cluster.hosts.size());
  cluster.min_hosts = range.given ? std::min(range.min, cluster.max_hosts) : cluster.max_hosts;
  cluster.start_arguments = options.remote.arguments;
  cluster.ssh_port = options.remote.ssh_port;
  cluster.max_restarts = options.restarts.max_restarts;
  return choice;
}

}  // namespace zerorun
