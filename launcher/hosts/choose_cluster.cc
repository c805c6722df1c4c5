#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "comm/rendezvous/slurm.h"
#include "config/env.h"
#include "core/check.h"
#include "core/parse_number.h"
#include "core/printable.h"
#include "launcher/hosts/cluster.h"
#include "launcher/hosts/host_filter.h"
#include "os/address.h"

namespace zerorun {

namespace {

constexpr uint16_t kDefaultPort = 29500;  // DeepSpeed's and torchrun's
constexpr int kMaxNodes = 65536;

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

// The slots of this host, without a filter that names other hosts.
std::vector<int> own_slots(const LaunchOptions& options, const ThisHost& here) {
  RankRequest request = options.request;
  request.include = request.exclude = "";
  return select_ranks(request, here.resources).slots;
}

ClusterChoice alone(const ThisHost& here, std::vector<int> slots, std::string note = "") {
  ClusterChoice choice{.cluster = {}, .note = std::move(note)};
  choice.cluster.hosts = {{.host = here.resources.name, .slots = std::move(slots)}};
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
  const auto found = std::ranges::find(hosts, own, &HostSlots::host);
  if (hosts.size() == 1 && found != hosts.end() && !options.hosts.force_multi) {
    const std::vector<int>& slots = hosts.front().slots;
    return alone(here, slots.empty() ? own_slots(options, here) : slots);
  }
  ClusterChoice choice;
  Cluster& cluster = choice.cluster;
  cluster.node_rank = found == hosts.end() ? -1 : static_cast<int>(found - hosts.begin());
  cluster.start = remote_start(options.hosts.launcher, pool.start);
  if (cluster.node_rank >= 0 && found->slots.empty()) found->slots = own_slots(options, here);
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

// What the sources of hosts look at.
struct Request {
  const LaunchOptions& options;
  const ThisHost& here;
  const NodeRange range;
  std::string note{};          // about the hostfile
  std::optional<Pool> pool{};  // of the hostfile

  bool by_hand() const {
    return is_by_hand(options.hosts) || (range.max > 1 && !options.hosts.endpoint.empty());
  }
  // A program that a rank starts is no part of the rank's own job.
  bool asks_scheduler() const {
    return !(range.given && range.max == 1) && variable(here, "RANK").empty();
  }
};

using Source = std::optional<ClusterChoice> (*)(const Request& request);

std::optional<ClusterChoice> standalone(const Request& request) {
  if (!request.options.hosts.standalone) return std::nullopt;
  return alone(request.here, select_ranks(request.options.request, request.here.resources).slots);
}

// The user, or something else, starts the launcher on every host.
std::optional<ClusterChoice> started_on_every_host(const Request& request) {
  const auto& [options, here, range, note, pool] = request;
  if (!request.by_hand()) return std::nullopt;
  if (pool) {
    const std::string& own = pool->own.value_or(here.resources.name);
    std::vector<HostSlots> hosts =
        select_hosts(pool->hosts, options.request, range.given ? range.max : 0, own);
    if (hosts.size() > 1) return by_hand(options, here, std::move(hosts));
    return std::nullopt;
  }
  if (range.max > 1) {
    return by_hand(options, here, std::vector<HostSlots>(static_cast<size_t>(range.max)));
  }
  if (options.hosts.node_rank.value_or(0) > 0) {
    fail<ConfigError>("--node_rank {}: the job has one host, 0; --nnodes says how many there are",
                      *options.hosts.node_rank);
  }
  return std::nullopt;
}

std::optional<ClusterChoice> hostfile(const Request& request) {
  if (!request.pool) return std::nullopt;
  const auto step = slurm_step();
  if (step && step->tasks > 1 && variable(request.here, "RANK").empty()) {
    fail<ConfigError>(
        "srun has started {} launchers, and each would start the whole job on the hosts of the "
        "hostfile: leave --hostfile out, or start zerorun once, without srun",
        step->tasks);
  }
  return from_pool(request.options, request.here, *request.pool, request.range);
}

// The launcher is itself a task of srun, one on every host.
std::optional<ClusterChoice> task_of_srun(const Request& request) {
  const auto step = slurm_step();
  if (!request.asks_scheduler() || !step || step->tasks <= 1) return std::nullopt;
  if (static_cast<size_t>(step->tasks) != step->hosts.size()) {
    refuse_tasks("srun", step->tasks, "srun --ntasks-per-node=1 zerorun ...");
  }
  std::vector<HostSlots> hosts;
  for (const std::string& name : step->hosts) hosts.push_back({name, {}});
  LaunchOptions numbered = request.options;
  numbered.hosts.node_rank = step->node;
  if (numbered.hosts.master_port == 0) numbered.hosts.master_port = slurm_port();
  return by_hand(numbered, request.here, std::move(hosts));
}

// The same with a process of mpirun.
std::optional<ClusterChoice> process_of_mpirun(const Request& request) {
  const ThisHost& here = request.here;
  if (!request.asks_scheduler()) return std::nullopt;
  const int processes = number(here, "OMPI_COMM_WORLD_SIZE", 1, kMaxNodes).value_or(1);
  if (processes == 1) return std::nullopt;
  if (number(here, "OMPI_COMM_WORLD_LOCAL_SIZE", 1, kMaxNodes).value_or(1) > 1) {
    refuse_tasks("mpirun", processes, "mpirun --map-by ppr:1:node zerorun ...");
  }
  LaunchOptions numbered = request.options;
  numbered.hosts.node_rank = number(here, "OMPI_COMM_WORLD_RANK", 0, processes - 1);
  return by_hand(numbered, here, std::vector<HostSlots>(static_cast<size_t>(processes)));
}

std::optional<ClusterChoice> allocation_of_slurm(const Request& request) {
  if (!request.asks_scheduler() || slurm_step()) return std::nullopt;
  const auto pool = pool_of_allocation(request.here);
  if (!pool) return std::nullopt;
  return from_pool(request.options, request.here, *pool, request.range);
}

std::optional<ClusterChoice> this_host(const Request& request) {
  const std::string& note = request.note;
  if (request.range.min > 1) {
    fail<ConfigError>(
        "--num_nodes {}: {}, so no host but this one is known; name them in a --hostfile, or start "
        "this command on every host with --node_rank R and --master_addr",
        request.options.hosts.count, note.empty() ? "there is no hostfile" : note);
  }
  return alone(request.here, select_ranks(request.options.request, request.here.resources).slots,
               note.empty() ? "" : note + ": ranks run on this host alone");
}

// In this order; the first that knows hosts decides.
constexpr auto kSources =
    std::to_array<Source>({standalone, started_on_every_host, hostfile, task_of_srun,
                           process_of_mpirun, allocation_of_slurm, this_host});

}  // namespace

ClusterChoice choose_cluster(const LaunchOptions& options, const ThisHost& here) {
  const NodeRange range = parse_node_range(options);
  Request request = {.options = options, .here = here, .range = range};
  if (!options.hosts.standalone) request.pool = pool_of_hostfile(options, here, request.note);
  std::optional<ClusterChoice> found;
  for (const Source source : kSources) {
    if ((found = source(request))) break;
  }
  ClusterChoice choice = *std::move(found);  // this_host always is one
  Cluster& cluster = choice.cluster;
  cluster.min_hosts = static_cast<int>(cluster.hosts.size());
  if (range.given) cluster.min_hosts = std::min(range.min, cluster.min_hosts);
  cluster.start_arguments = options.remote.arguments;
  cluster.ssh_port = options.remote.ssh_port;
  cluster.max_restarts = options.restarts.max_restarts;
  return choice;
}

}  // namespace zerorun
