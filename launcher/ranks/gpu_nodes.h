#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace zerorun {

// The NUMA node of each GPU, according to the driver and the kernel; nullopt if unknown. GPUs are
// named as in CUDA_VISIBLE_DEVICES: by number or by UUID.
std::vector<std::optional<int>> gpu_nodes(std::span<const std::string> gpus,
                                          const std::filesystem::path& root = "/");

}  // namespace zerorun
