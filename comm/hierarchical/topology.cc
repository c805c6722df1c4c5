#include "comm/hierarchical/topology.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <map>
#include <string_view>
#include <utility>

#include "comm/waiting.h"
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

using Entry = std::array<std::string, 4>;

std::string_view take_line(std::string_view& text) {
  const size_t end = text.find('\n');
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return line;
}

}  // namespace

// An entry is four lines: the host's name for comparison, the process for messages, its build, and
// how many ranks it expects. In what rank 0 sends to all, an empty line is the same as the rank
// before's: so a thousand ranks do not read a thousand times what is the same for all of them.
Topology Topology::discover(const GroupOptions& options) {
  const std::string host = options.host.empty() ? this_host() : options.host;
  const std::string seen_as = options.host.empty() ? host_name() : options.host;
  const auto own = fmt::format("{}\n{} on {}\n{}\n{}", host, getpid(), seen_as, build_id().data(),
                               options.world_size);
  std::string all;
  Entry last;
  const auto take = [&](std::string_view rest) {
    for (std::string& before : last) {
      const std::string_view line = take_line(rest);
      if (line != before) all += before = line;
      all += '\n';
    }
    return last.back() == std::to_string(options.world_size);  // else whoever reads it fails
  };
  answer_all(options, options.name + "/place", own, fmt::format("to join '{}'", options.name), all,
             take);
  std::vector<std::string> hosts;
  std::vector<std::string> seen;
  std::string expected;  // how many ranks rank 0 expects
  Entry entry;
  std::string_view rest = all;
  for (int rank = 0; !rest.empty(); ++rank) {
    for (std::string& line : entry) {
      if (const std::string_view text = take_line(rest); !text.empty()) line = text;
    }
    const auto& [place, process, build, size] = entry;
    hosts.push_back(place);
    seen.push_back(process);
    if (build != build_id().data()) {
      fail<CommError>(
          "rank {} (pid {}) runs another build of zerorun than rank {}: install the same on all "
          "hosts",
          options.number(rank), process, options.own_number());
    }
    if (rank == 0) expected = size;
    if (size != expected) {
      fail<CommError>("rank {} expects {} ranks, but rank 0 expects {}", rank, size, expected);
    }
  }
  Topology topology(hosts);
  topology.seen_as_ = std::move(seen);
  topology.numbers_ = options.numbers;
  return topology;
}

std::string Topology::name_of_rank(int rank) const {
  const auto at = static_cast<size_t>(rank);
  const int number = numbers_.empty() ? rank : numbers_[at];
  if (seen_as_.empty()) return fmt::format("rank {}", number);
  return fmt::format("rank {} (pid {})", number, seen_as_[at]);
}

Topology::Topology(const std::vector<std::string>& names) {
  std::map<std::string, int> numbers;
  for (size_t rank = 0; rank < names.size(); ++rank) {
    const auto [entry, added] = numbers.try_emplace(names[rank], hosts());
    if (added) ranks_.emplace_back();
    std::vector<int>& ranks = ranks_[static_cast<size_t>(entry->second)];
    places_.push_back({entry->second, static_cast<int>(ranks.size())});
    ranks.push_back(static_cast<int>(rank));
  }
}

}  // namespace zerorun
