#pragma once

#include <string_view>
#include <vector>

#include "zerorun/config.h"

namespace zerorun {

// Settings of ZeRO++ (Wang et al. 2023, arXiv 2306.10209) that reduce traffic between hosts: an
// hpZ (secondary) partition of parameters within a host, and quantized communication. They save
// nothing if all ranks that share a copy of the model are on one host.

// The keys of these settings that `zero` turns on.
std::vector<std::string_view> zeropp_keys(const ZeroConfig& zero);

// Replaces "auto" group sizes in `zero` by numbers. `ranks_per_host`: neighbouring ranks that share
// a host. Turns off settings that save nothing there and returns their keys.
std::vector<std::string_view> resolve_groups(ZeroConfig& zero, int world_size, int ranks_per_host);

// Throws ConfigError if `groups` is above 1: quantized gradients are not supported with several
// shard groups. `ranks`: ranks of a group, for the text.
void check_quantized_groups(int64_t groups, int64_t ranks);

// Turns on overlap_comm if ranks span hosts and the configuration does not set it. Collectives
// between hosts mostly wait for the link and leave the cores to computation, also on CPU ranks.
void overlap_between_hosts(ZeroConfig& zero, int world_size, int ranks_per_host);

// `zero` without these settings.
ZeroConfig without_zeropp(ZeroConfig zero);

}  // namespace zerorun
