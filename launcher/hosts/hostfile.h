#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/hosts/cluster.h"

namespace zerorun {

// The list of hosts that DeepSpeed's launcher and MPI read: one host a line, as
//   worker-1 slots=4              # a comment
//   worker-2 slots=4 max_slots=8
//   worker-3:4
//   [fe80::1]:4
//   me@worker-4                   # as many slots as it has; for ssh or pdsh to log in as "me"
// Slots count from 0; without a number they are left for the host itself to tell (empty). Throws
// ConfigError with `name` and the line for anything else, and for a file without hosts.
std::vector<HostSlots> parse_hostfile(std::string_view text, const std::string& name);

// Nothing when there is no such file. Throws ConfigError when it cannot be read, or is malformed.
std::optional<std::vector<HostSlots>> read_hostfile(const std::filesystem::path& path);

// True for what can be the name or address of a host: never an option of ssh, or words of a shell.
bool is_host_name(std::string_view name);

// {0, 1, ..., count - 1}.
std::vector<int> first_slots(int count);

}  // namespace zerorun
