#include "launcher/hosts/host_filter.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "comm/rendezvous/slurm.h"
#include "core/check.h"
#include "core/parse_number.h"
#include "core/printable.h"
#include "launcher/hosts/cluster.h"
#include "launcher/words.h"
#include "os/address.h"

namespace zerorun {

namespace {

// "worker-1:0,2" -> its name and the text after the colon. An address of IPv6 is in brackets, or
// has no slots.
std::pair<std::string_view, std::optional<std::string_view>> split_filter(std::string_view spec) {
  if (spec.starts_with('[')) {
    const size_t end = std::min(spec.find(']'), spec.size());
    const std::string_view rest = trim(spec.substr(std::min(end + 1, spec.size())));
    if (rest.empty()) return {spec.substr(1, end - 1), std::nullopt};
    return {spec.substr(1, end - 1), rest.substr(1)};
  }
  const size_t colon = spec.find(':');
  if (colon == std::string_view::npos || std::ranges::count(spec, ':') > 1) {
    return {spec, std::nullopt};
  }
  return {trim(spec.substr(0, colon)), spec.substr(colon + 1)};
}

std::set<int> parse_slots(std::string_view option, const std::string& text, std::string_view name,
                          std::string_view list) {
  if (trim(list).empty()) {
    fail<ConfigError>("{} '{}' names no slot after '{}:'; '{}' alone means all of them", option,
                      text, name, name);
  }
  std::set<int> slots;
  for (const std::string_view slot : split(list, ',')) {
    const std::optional<int> number = parse_number(trim(slot));
    if (!number || *number < 0) {
      fail<ConfigError>("{} '{}': slot '{}' is not a number; list the slots, as in localhost:0,2",
                        option, text, slot);
    }
    slots.insert(*number);
  }
  return slots;
}

// The host of the pool that a filter means.
size_t find_host(const std::vector<HostSlots>& pool, std::string_view name, const std::string& here,
                 std::string_view option, const std::string& text) {
  const auto named = std::ranges::find(pool, name, &HostSlots::host);
  if (named != pool.end()) return static_cast<size_t>(named - pool.begin());
  if (is_this_host(name, here)) {
    const auto own = std::ranges::find_if(
        pool, [&here](const HostSlots& host) { return is_this_host(host.host, here); });
    if (own != pool.end()) return static_cast<size_t>(own - pool.begin());
  }
  constexpr size_t kShown = 8;
  std::vector<std::string_view> names;
  for (size_t i = 0; i < std::min(pool.size(), kShown); ++i) names.emplace_back(pool[i].host);
  fail<ConfigError>("{} '{}' names host '{}', which is not among the job's {}: {}{}", option, text,
                    name, pool.size(), fmt::join(names, ", "), pool.size() > kShown ? ", ..." : "");
}

// The filters of a text in which hosts may be written as in the hostfile, "user@host": the user is
// no host, though '@' also stands between two of them.
std::vector<HostFilter> filters_for(const std::vector<HostSlots>& pool, std::string_view option,
                                    const std::string& text) {
  std::vector<HostFilter> filters = parse_host_filter(option, text);
  for (size_t i = 0; i + 1 < filters.size();) {
    const bool is_user =
        filters[i].slots.empty() && std::ranges::any_of(pool, [&](const HostSlots& host) {
          return host.user == filters[i].host && host.host == filters[i + 1].host;
        });
    if (is_user) {
      filters.erase(filters.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  return filters;
}

void check_slot(const HostSlots& host, int slot, std::string_view option, const std::string& text) {
  if (host.slots.empty() || std::ranges::find(host.slots, slot) != host.slots.end()) {
    return;  // of a host without a number of slots its own launcher says what there is
  }
  fail<ConfigError>("{} '{}' names slot {} of host '{}', which has {} (0 to {})", option, text,
                    slot, host.host, host.slots.size(), host.slots.back());
}

// The hosts and slots that --include names, or that --exclude leaves.
std::vector<HostSlots> filter_hosts(const std::vector<HostSlots>& pool, std::string_view option,
                                    const std::string& text, const std::string& here) {
  struct Named {
    bool any = false;
    bool whole = false;  // the host without slots, which means all of them
    std::set<int> slots{};
  };
  const bool including = option == "--include";
  std::vector<Named> named(pool.size());
  for (const HostFilter& filter : filters_for(pool, option, text)) {
    const size_t number = find_host(pool, filter.host, here, option, text);
    const HostSlots& host = pool[number];
    if (!including && !filter.slots.empty() && host.slots.empty()) {
      fail<ConfigError>(
          "--exclude '{}' names slots of host '{}', but not even their number is known: write '{} "
          "slots=N' into the hostfile",
          text, host.host, host.host);
    }
    for (const int slot : filter.slots) check_slot(host, slot, option, text);
    named[number].any = true;
    named[number].whole |= filter.slots.empty();
    named[number].slots.insert(filter.slots.begin(), filter.slots.end());
  }
  std::vector<HostSlots> kept;
  for (size_t i = 0; i < pool.size(); ++i) {
    const Named& name = named[i];
    if (including ? !name.any : name.whole) continue;
    HostSlots host = pool[i];
    if (including && !name.whole) host.slots.assign(name.slots.begin(), name.slots.end());
    if (!including) std::erase_if(host.slots, [&](int slot) { return name.slots.contains(slot); });
    if (including || !name.any || !host.slots.empty()) kept.push_back(std::move(host));
  }
  if (kept.empty()) fail<ConfigError>("{} '{}' leaves no host to run on", option, text);
  return kept;
}

void limit_slots(std::vector<HostSlots>& hosts, int count) {
  for (HostSlots& host : hosts) {
    if (host.slots.empty()) {
      host.slots = first_slots(count);
      continue;
    }
    if (host.slots.size() < static_cast<size_t>(count)) {
      fail<ConfigError>("--num_gpus {}: the hostfile gives host '{}' {} slot{}", count, host.host,
                        host.slots.size(), host.slots.size() == 1 ? "" : "s");
    }
    host.slots.resize(static_cast<size_t>(count));
  }
}

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

bool is_this_host(std::string_view name, const std::string& here) {
  return name == "localhost" || name == "127.0.0.1" || name == "::1" || name == here ||
         name == std::string_view(here).substr(0, here.find('.'));
}

std::vector<HostFilter> parse_host_filter(std::string_view option, const std::string& text) {
  std::vector<HostFilter> filters;
  for (const std::string_view part : split(text, '@')) {
    const auto [name, slots] = split_filter(trim(part));
    if (!is_host_name(name)) {
      fail<ConfigError>(
          "{} '{}': expected HOST[:SLOT,SLOT...][@HOST...], for example localhost:0,2", option,
          printable(text));
    }
    HostFilter filter = {.host = std::string(name)};
    if (slots) filter.slots = parse_slots(option, text, name, *slots);
    filters.push_back(std::move(filter));
  }
  return filters;
}

std::vector<HostSlots> select_hosts(const std::vector<HostSlots>& pool, const RankRequest& request,
                                    int nodes, const std::string& here) {
  check_combination(request, nodes);
  if (!request.include.empty()) return filter_hosts(pool, "--include", request.include, here);
  if (!request.exclude.empty()) return filter_hosts(pool, "--exclude", request.exclude, here);
  std::vector<HostSlots> hosts = pool;
  if (nodes > static_cast<int>(pool.size())) {
    fail<ConfigError>("--num_nodes {}: there {} {} host{} ({}{})", nodes,
                      pool.size() == 1 ? "is" : "are", pool.size(), pool.size() == 1 ? "" : "s",
                      pool.front().host, pool.size() == 1 ? "" : ", ...");
  }
  if (nodes > 0) hosts.resize(static_cast<size_t>(nodes));
  if (const std::optional<int> count = number_of_ranks(request)) limit_slots(hosts, *count);
  return hosts;
}

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
