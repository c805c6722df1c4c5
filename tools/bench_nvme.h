#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace zerorun {

// Measures the disk of a folder as NVMe offloading uses it: direct reads and writes with several
// sizes and numbers of requests, and the resulting time of a step per billion parameters. Calls
// `print` for each line. Uses `nbytes` of the disk while it runs. Throws ConfigError if the folder
// cannot be used for offloading.
void bench_nvme(const std::string& folder, uint64_t nbytes,
                const std::function<void(const std::string&)>& print);

}  // namespace zerorun
