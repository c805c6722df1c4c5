#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/hosts/cluster.h"

namespace zerorun {

// Parses the list of hosts that DeepSpeed's launcher and MPI read, one host per line:
//   worker-1 slots=4              # a comment
//   worker-2 slots=4 max_slots=8
//   worker-3:4
//   [fe80::1]:4
//   me@worker-4                   # as many slots as it has; ssh and pdsh log in as "me"
// Slots are numbered from 0; without a number the result has no slots, and the host itself chooses
// them. Throws ConfigError that names `name` and the line for other text, and for a file without
// hosts.
std::vector<HostSlots> parse_hostfile(std::string_view text, const std::string& name);

// nullopt if the file does not exist. Throws ConfigError if it cannot be read or is malformed.
std::optional<std::vector<HostSlots>> read_hostfile(const std::filesystem::path& path);

// True if `name` can be the name or address of a host. False for options of ssh and shell syntax.
bool is_host_name(std::string_view name);

inline constexpr int64_t kMaxPort = 65535;

// Parses "host:29500", "[::1]:29500" or "host"; `port` is the default. Throws ConfigError for other
// text, which names `option`.
struct Endpoint {
  std::string host;
  uint16_t port = 0;
};
Endpoint parse_endpoint(std::string_view option, const std::string& text, uint16_t port);

// {0, 1, ..., count - 1}.
std::vector<int> first_slots(int count);

}  // namespace zerorun
