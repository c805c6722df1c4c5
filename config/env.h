#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace zerorun {

// The environment variables that zerorun reads, in C++ and in Python; `zerorun env` prints the
// table. The launcher besides passes all variables on. (The deepspeed module also reads those of
// MPI and Slurm, as DeepSpeed does.)
struct EnvironmentVariable {
  std::string_view name;
  std::string_view meaning;
};
std::span<const EnvironmentVariable> environment_variables();

// Throws InternalError for a name that is not in the table.
void check_in_table(std::string_view name);

// The value, or nothing when unset or empty. The name must be in the table.
std::optional<std::string> read_environment(std::string_view name);
// All variables of this process, as the launcher passes them on.
std::map<std::string, std::string> inherited_environment();
// True when CUDA_VISIBLE_DEVICES is set, to nothing: so the launcher marks CPU ranks.
bool hides_all_gpus();
// True when the value of a switch turns it on: anything but the empty text and 0.
bool is_on(std::string_view value);
// The value as an integer in [low, high]; throws ConfigError naming variable, value and range.
std::optional<long> read_environment_int(std::string_view name, long low, long high);
// The same of a value that has been read.
long parse_environment_int(std::string_view name, std::string_view text, long low, long high);

// The time of ZERORUN_COMM_TIMEOUT, which is in seconds, else `configured`. Throws ConfigError
// unless it is a number above 0, of at most 1e6.
std::chrono::milliseconds comm_timeout(std::chrono::milliseconds configured);

// Throws ConfigError unless a value of OMP_NUM_THREADS is empty or numbers that OpenMP takes ("4",
// "4,2"). It ignores what is no number, and crashes where there are too many threads.
void check_thread_count(std::string_view value);

}  // namespace zerorun
