#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace zerorun {

// Returns the text of `zerorun env`: this build, this machine as a job would use it, and the
// environment variables that zerorun reads. The text is meant for bug reports and does not contain
// the job secret.
std::string host_report();

// Returns a list of the environment variables that zerorun reads, with meaning and current value.
std::string environment_report();

// Measures the disk of a folder as NVMe offloading uses it: direct reads and writes with several
// sizes and numbers of requests, and the resulting time of a step per billion parameters. Calls
// `print` for each line. Uses `nbytes` of the disk while it runs. Throws ConfigError if the folder
// cannot be used for offloading.
void bench_nvme(const std::string& folder, uint64_t nbytes,
                const std::function<void(const std::string&)>& print);

// "zerorun 0.2.0 (commit 0123456789ab)".
std::string version_line();

}  // namespace zerorun
