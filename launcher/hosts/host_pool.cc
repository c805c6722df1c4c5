#include "launcher/hosts/host_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "comm/rendezvous/slurm.h"
#include "core/printable.h"
#include "launcher/hosts/host_filter.h"
#include "launcher/hosts/hostfile.h"
#include "os/address.h"

namespace zerorun {

namespace {

constexpr const char* kDefaultHostfile = "/job/hostfile";

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

}  // namespace

std::string variable(const ThisHost& here, const std::string& name) {
  return find_variable(here.environment, name).value_or("");
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

}  // namespace zerorun
