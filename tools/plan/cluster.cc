#include <algorithm>
#include <map>
#include <numeric>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/parse_number.h"
#include "tools/plan/simulation.h"

namespace zerorun {

SimulatedCluster parse_cluster(const std::string& text) {
  constexpr int kMax = 1 << 20;
  SimulatedCluster cluster;
  std::istringstream parts(text);
  int hosts = 0;
  int gpus = 0;
  bool valid = !text.ends_with(',');
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t equals = part.find('=');
    const std::string_view value =
        std::string_view(part).substr(equals == std::string::npos ? part.size() : equals + 1);
    const int number = parse_number(value, 1, kMax).value_or(0);
    const std::string name = part.substr(0, equals);
    valid &= number > 0;
    if (name == "hosts" && hosts == 0) {
      cluster.hosts = hosts = number;
    } else if ((name == "gpus" || name == "cpus") && gpus == 0) {
      cluster.gpus = gpus = number;
      cluster.cpu = name == "cpus";
    } else {
      valid = false;
    }
  }
  if (!valid || hosts == 0 || gpus == 0 || int64_t{cluster.hosts} * cluster.gpus > kMax) {
    fail<ConfigError>(
        "--simulate '{}': expected hosts=H,gpus=G, such as hosts=1280,gpus=8, or hosts=H,cpus=C "
        "for so many CPU ranks on each; at most {} ranks together",
        text, kMax);
  }
  return cluster;
}

double parse_rate(const std::string& text, const std::string& option) {
  std::string_view unit = text;
  const double number = take_number<double>(unit).value_or(0);
  if (unit.ends_with("/s")) unit.remove_suffix(2);
  const double factor = unit == "Gbit"   ? 1e9 / 8
                        : unit == "Mbit" ? 1e6 / 8
                        : unit == "Tbit" ? 1e12 / 8
                        : unit == "GB"   ? 1e9
                        : unit == "MB"   ? 1e6
                        : unit == "TB"   ? 1e12
                                         : 0.0;
  const double rate = number * factor;
  if (!(rate > 0)) {
    fail<ConfigError>(
        "{} '{}': expected a rate such as 400Gbit or 450GB/s, which is a number above 0 of Mbit, "
        "Gbit, Tbit, MB, GB or TB per second",
        option, text);
  }
  if (rate < 1e3 || rate > 1e18) {
    fail<ConfigError>("{} '{}': expected a rate from 0.001MB/s to 1000000TB/s", option, text);
  }
  return rate;
}

SimulatedCluster cluster_of(const PlanOptions& options) {
  if (options.link.empty() || options.nvlink.empty()) {
    fail<ConfigError>("--simulate needs --link and --nvlink, such as 400Gbit and 450GB/s");
  }
  SimulatedCluster cluster = parse_cluster(options.simulate);
  if (options.cpu && !cluster.cpu) {
    fail<ConfigError>("--simulate {} describes GPUs: remove --cpu, or write cpus= instead of gpus=",
                      options.simulate);
  }
  cluster.link = parse_rate(options.link, "--link");
  cluster.nvlink = parse_rate(options.nvlink, "--nvlink");
  if (!options.link_cpu.empty()) {
    if (!cluster.cpu) {
      fail<ConfigError>(
          "--link_cpu applies only to CPU ranks: write cpus= instead of gpus= in --simulate");
    }
    cluster.link_cpu = parse_rate(options.link_cpu, "--link_cpu");
  }
  cluster.latency = options.latency_us * 1e-6;
  cluster.flops = options.tflops * 1e12;
  return cluster;
}

namespace {

// A group of ranks from the point of view of one of its hosts.
struct HostGroup {
  int64_t ranks = 1;  // ranks of the group
  int64_t near = 1;   // ranks of the group on this host
  int64_t hosts = 1;  // hosts of the group
};

// Returns the groups that the ranks of a job form for a collective, for each distinct kind of host.
// Groups of neighbouring ranks may begin on one host and end on another.
std::vector<std::vector<HostGroup>> groups_on_hosts(const CallRanks& ranks, int world_size,
                                                    int ranks_per_host) {
  const int64_t count = ranks.count;
  const int64_t distance = ranks.distance;
  const int64_t per_host = ranks_per_host;
  const int64_t block = count * distance;  // in which the groups lie that are entwined
  const int64_t near = std::clamp<int64_t>(per_host / distance, 1, count);
  const bool aligned = world_size % per_host == 0 && count % near == 0 &&
                       (per_host % distance == 0 || distance % per_host == 0) &&
                       (block % per_host == 0 || per_host % block == 0);
  if (aligned) {
    const HostGroup group{count, near, count / near};
    return {std::vector<HostGroup>(static_cast<size_t>(per_host / near), group)};
  }
  // The pattern repeats where a host and a block begin at the same rank.
  const int64_t period = std::min<int64_t>(world_size, std::lcm(per_host, block));
  std::map<int64_t, std::map<int64_t, int64_t>> near_of;  // by group, by host
  for (int64_t rank = 0; rank < period; ++rank) {
    const int64_t group = rank / block * distance + rank % distance;
    ++near_of[group][rank / per_host];
  }
  std::vector<std::vector<HostGroup>> hosts(
      static_cast<size_t>((period + per_host - 1) / per_host));
  for (const auto& [group, parts] : near_of) {
    for (const auto& [host, here] : parts) {
      hosts[static_cast<size_t>(host)].push_back({count, here, static_cast<int64_t>(parts.size())});
    }
  }
  return hosts;
}

// Returns the bytes that the ranks of a group on one host send to other hosts, once per other host
// (comm/hierarchical): sums to their owners, and results and gathered data from owners.
double sent_by_host(const StepCall& call, const HostGroup& group) {
  const auto of = [&](int64_t bytes, int64_t ranks) {
    return static_cast<double>(bytes) * static_cast<double>(ranks) /
           static_cast<double>(group.ranks);
  };
  const int64_t others = group.hosts - 1;
  switch (call.op) {
    case Collective::all_reduce:
      return of(call.sums, group.ranks - group.near) + of(call.results, group.near * others);
    case Collective::reduce_scatter:
      return of(call.sums, group.ranks - group.near);
    case Collective::all_gather:
      return of(call.bytes, group.near * others);
    default:
      return of(call.bytes, group.ranks - group.near) * static_cast<double>(group.near);
  }
}

// Returns the bytes of a ring, in which one rank of a host sends to another host; in an all_to_all
// every rank does.
double sent_by_ring(const StepCall& call, const HostGroup& group, double sent) {
  if (group.hosts == 1) return 0;
  if (call.op != Collective::all_to_all) return sent;
  return static_cast<double>(call.bytes) * static_cast<double>(group.near) *
         static_cast<double>(group.ranks - group.near) / static_cast<double>(group.ranks);
}

}  // namespace

CallCost cost_of_exchanges(std::span<const StepCall> calls, const SimulatedCluster& cluster) {
  struct Traffic {
    int64_t most() const { return std::max(sent, received); }
    int64_t sent = 0, received = 0;  // bytes
    int64_t messages = 0;
  };
  const auto host_of = [&](int64_t rank) { return static_cast<size_t>(rank / cluster.gpus); };
  // What all groups send is the same. The pattern repeats where a host and a group begin at the
  // same rank.
  int64_t period = cluster.gpus;
  for (const StepCall& call : calls) period = std::lcm(period, call.ranks.count);
  const int64_t world_size = std::min<int64_t>(cluster.ranks(), period);
  std::vector<Traffic> hosts(host_of(world_size - 1) + 1);
  std::vector<Traffic> ranks(static_cast<size_t>(world_size));
  std::vector<int64_t> messages(ranks.size());  // of a rank, also to other hosts
  const auto send = [&](int64_t from, int64_t to, int64_t nbytes) {
    const bool leaves = host_of(from) != host_of(to);
    Traffic& out = leaves ? hosts[host_of(from)] : ranks[static_cast<size_t>(from)];
    out.sent += nbytes;
    ++out.messages;
    (leaves ? hosts[host_of(to)] : ranks[static_cast<size_t>(to)]).received += nbytes;
    ++messages[static_cast<size_t>(from)];
  };
  for (const StepCall& call : calls) {
    const auto& [before, after] = *call.cuts;
    const auto count = static_cast<size_t>(call.ranks.count);
    for (int64_t first = 0; first + call.ranks.count <= world_size; first += call.ranks.count) {
      for (size_t from = 0, to = 0; from < count && to < count;) {
        const int64_t numel =
            std::min(before[from + 1], after[to + 1]) - std::max(before[from], after[to]);
        if (numel > 0 && from != to) {
          send(first + static_cast<int64_t>(from), first + static_cast<int64_t>(to),
               numel * static_cast<int64_t>(size_of(DType::fp32)));
        }
        ++(before[from + 1] <= after[to + 1] ? from : to);
      }
    }
  }
  CallCost cost;
  for (const Traffic& host : hosts) {
    cost.link_bytes = std::max(cost.link_bytes, host.most());
    cost.link_messages = std::max(cost.link_messages, host.messages);
  }
  for (const Traffic& rank : ranks) cost.near_bytes = std::max(cost.near_bytes, rank.most());
  cost.messages = *std::ranges::max_element(messages);
  cost.seconds = static_cast<double>(cost.messages) *
                     (cost.link_bytes > 0 ? cluster.latency : cluster.near_latency) +
                 std::max(static_cast<double>(cost.link_bytes) / cluster.link,
                          static_cast<double>(cost.near_bytes) / cluster.nvlink);
  return cost;
}

CallCost cost_of(const StepCall& call, const SimulatedCluster& cluster) {
  const int64_t ranks = call.ranks.count;
  const bool exchanges = call.op == Collective::all_to_all;
  const int64_t passes = call.op == Collective::all_reduce ? 2 : 1;
  const double sent = static_cast<double>(call.bytes) * static_cast<double>(passes) *
                      static_cast<double>(ranks - 1) / static_cast<double>(ranks);
  CallCost cost;
  bool leaves = false;
  int64_t least_near = ranks;
  double away = 0;  // bytes over the link of the host that sends the most
  for (const auto& host : groups_on_hosts(call.ranks, cluster.ranks(), cluster.gpus)) {
    double bytes = 0;
    int64_t messages = 0;
    for (const HostGroup& group : host) {
      least_near = std::min(least_near, group.near);
      if (group.hosts == 1) continue;
      leaves = true;
      bytes += cluster.cpu ? sent_by_host(call, group) : sent_by_ring(call, group, sent);
      messages += cluster.cpu ? passes * (group.ranks - group.near)
                  : exchanges ? group.near * (group.ranks - group.near)
                              : passes * (ranks - 1);
    }
    away = std::max(away, bytes);
    cost.link_messages = std::max(cost.link_messages, messages);
  }
  cost.link_bytes = static_cast<int64_t>(away);
  cost.messages = passes * (ranks - 1);
  double near = sent;
  if (leaves && !cluster.cpu) {
    if (least_near == 1) near = 0;
    if (exchanges) {
      near = sent - static_cast<double>(call.bytes) * static_cast<double>(ranks - least_near) /
                        static_cast<double>(ranks);
    }
  }
  cost.near_bytes = static_cast<int64_t>(near);
  cost.seconds =
      static_cast<double>(cost.messages) * (leaves ? cluster.latency : cluster.near_latency) +
      std::max(away / cluster.link, sent / cluster.nvlink);
  return cost;
}

}  // namespace zerorun
