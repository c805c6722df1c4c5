#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace zerorun {

// Measures a folder's disk the way NVMe offload uses it: direct reads and writes by size and
// number of requests, then what a step costs for each billion parameters. `print` gets a line at a
// time. Uses `nbytes` of the disk while it runs. Throws ConfigError when the folder is no place to
// offload to.
void bench_nvme(const std::string& folder, uint64_t nbytes,
                const std::function<void(const std::string&)>& print);

}  // namespace zerorun
