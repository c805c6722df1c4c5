#pragma once

#include <span>
#include <string>
#include <vector>

#include "device/cuda/libraries/nvml.h"

namespace zerorun {

// How the visible GPUs, at these addresses in their order, reach each other: lines of a table in
// the words of `nvidia-smi topo`, and what the words mean. Empty for fewer than two GPUs.
std::vector<std::string> describe_gpu_links(std::span<const PciAddress> gpus);

}  // namespace zerorun
