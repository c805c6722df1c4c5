#include "comm/hierarchical/topology.h"

#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <optional>
#include <sstream>
#include <utility>

#include "comm/rendezvous/lookup_store.h"
#include "comm/rendezvous/patient_get.h"
#include "core/build_id.h"
#include "core/check.h"
#include "os/process_identity.h"

namespace zerorun {

namespace {

// Ranks with the same text see each other's processes, and their addresses mean the same.
std::string this_host() {
  const ProcessIdentity process = this_process();
  struct stat network {};
  const bool known = ::stat("/proc/self/ns/net", &network) == 0;
  return fmt::format("{}/{}/{}", process.boot_id.data(), process.pid_namespace,
                     known ? network.st_ino : 0);
}

std::string list_of(const std::vector<int>& ranks) {
  constexpr size_t kMost = 16;
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (size_t i = 0; i < ranks.size() && i < kMost; ++i) {
    text += fmt::format("{} {}", i == 0 ? "" : ",", ranks[i]);
  }
  if (ranks.size() > kMost) text += fmt::format(" and {} more", ranks.size() - kMost);
  return text;
}

// Rank 0's side: waits for the entries of all ranks, up to the first that expects another number of
// ranks: whoever reads it fails.
std::vector<std::string> collect(const GroupOptions& options, const std::string& prefix) {
  auto* const lookup = dynamic_cast<LookupStore*>(options.store.get());
  std::vector<std::string> entries;
  const PatientGet get(options);
  for (int rank = 0; rank < options.world_size; ++rank) {
    const auto missing = [&] {
      std::vector<int> absent;
      for (int peer = rank; peer < options.world_size; ++peer) {
        const std::string key = prefix + std::to_string(peer);
        if (lookup == nullptr || !lookup->find(key)) absent.push_back(options.number(peer));
      }
      return fmt::format("{} of {} to join '{}'{}", list_of(absent), options.world_size,
                         options.name,
                         options.master_addr.empty()
                             ? ""
                             : " at " + options.master_addr + " (MASTER_ADDR, MASTER_PORT)");
    };
    entries.push_back(get(prefix + std::to_string(rank), missing));
    if (!entries.back().ends_with(fmt::format("\n{}", options.world_size))) break;
  }
  return entries;
}

}  // namespace

// An entry is four lines: the host's name for comparison, the rank's for messages, its build, and
// how many ranks it expects.
Topology Topology::discover(const GroupOptions& options) {
  const std::string prefix = options.name + "/place/";
  const std::string all_key = options.name + "/places";
  const std::string host = options.host.empty() ? this_host() : options.host;
  const std::string seen_as = options.host.empty() ? host_name() : options.host;
  options.store->set(prefix + std::to_string(options.rank),
                     fmt::format("{}\n{} on {}\n{}\n{}", host, getpid(), seen_as, build_id().data(),
                                 options.world_size));
  std::string all;
  if (options.rank == 0) {
    for (const std::string& entry : collect(options, prefix)) all += entry + "\n";
    options.store->set(all_key, all);
  } else {
    all = PatientGet(options)(all_key, [&] {
      return fmt::format("all {} ranks to join '{}': rank 0 knows which are missing",
                         options.world_size, options.name);
    });
  }
  std::vector<std::string> hosts;
  std::vector<std::string> names;
  std::istringstream lines(all);
  std::string line;
  std::string expected;  // how many ranks rank 0 expects
  for (int rank = 0; std::getline(lines, line); ++rank) {
    hosts.push_back(line);
    std::getline(lines, line);
    names.push_back(fmt::format("rank {} (pid {})", options.number(rank), line));
    std::getline(lines, line);
    if (line != build_id().data()) {
      fail<CommError>(
          "{} runs another build of zerorun than rank {}: install the same on all hosts",
          names.back(), options.own_number());
    }
    std::getline(lines, line);
    if (rank == 0) expected = line;
    if (line != expected) {
      fail<CommError>("rank {} expects {} ranks, but rank 0 expects {}", rank, line, expected);
    }
  }
  Topology topology(hosts);
  topology.names_ = std::move(names);
  return topology;
}

Topology::Topology(const std::vector<std::string>& names) {
  std::map<std::string, int> numbers;
  for (size_t rank = 0; rank < names.size(); ++rank) {
    const auto [entry, added] = numbers.try_emplace(names[rank], hosts());
    if (added) ranks_.emplace_back();
    std::vector<int>& ranks = ranks_[static_cast<size_t>(entry->second)];
    places_.push_back({entry->second, static_cast<int>(ranks.size())});
    ranks.push_back(static_cast<int>(rank));
    names_.push_back(fmt::format("rank {}", rank));
  }
}

}  // namespace zerorun
