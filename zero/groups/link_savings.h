#pragma once

#include <string_view>
#include <vector>

#include "zerorun/config.h"

namespace zerorun {

// ZeRO++ (Wang et al. 2023, arXiv 2306.10209) sends less between hosts: a second copy
// of parameters within a host, and fewer bits. Ranks that share a copy of the model on one host
// have nothing to save.

// The keys of `zero` that ask for less traffic between hosts.
std::vector<std::string_view> link_savings(const ZeroConfig& zero);

// Replaces "auto" sizes of groups in `zero` by numbers, for so many ranks of which neighbours share
// a host. Resets the keys that save nothing there, and returns their names.
std::vector<std::string_view> resolve_groups(ZeroConfig& zero, int world_size, int ranks_per_host);

// Throws ConfigError for quantized gradients with more than one shard group, of so many ranks.
void check_quantized_groups(int64_t groups, int64_t ranks);

// A collective between hosts mostly waits for the link, also on CPUs, and leaves the cores to
// computation: unless the configuration says it, the two overlap there.
void overlap_between_hosts(ZeroConfig& zero, int world_size, int ranks_per_host);

// The configuration without those keys.
ZeroConfig without_link_savings(ZeroConfig zero);

}  // namespace zerorun
