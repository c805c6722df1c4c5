#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace zerorun {

// An environment variable that zerorun reads in C++ or Python; `zerorun env` prints the table of
// them. The launcher passes on all other variables, too. (The deepspeed module also reads variables
// of MPI and Slurm, as DeepSpeed does.)
struct EnvironmentVariable {
  std::string_view name;
  std::string_view meaning;
};
std::span<const EnvironmentVariable> environment_variables();

// Throws InternalError if the name is not in the table.
void check_in_table(std::string_view name);

// Returns the value, or nullopt if the variable is unset or empty. The name must be in the table.
std::optional<std::string> read_environment(std::string_view name);
// Sets the variable to `value` if it is unset, for a library that reads it later. The name must be
// in the table.
void default_environment(const char* name, const char* value);
// Returns all variables of this process, which the launcher passes on.
std::map<std::string, std::string> inherited_environment();
// True if CUDA_VISIBLE_DEVICES is set and names no GPU: it is empty, by which the launcher marks
// CPU ranks, or begins with another word (-1, none), by which CUDA shows none.
bool hides_all_gpus();
// True if the value of a switch turns it on: any value except "" and 0.
bool is_on(std::string_view value);
// Returns the value as an integer in [low, high]. Throws ConfigError that names variable, value and
// range.
std::optional<long> read_environment_int(std::string_view name, long low, long high);
// The same of a value that has been read.
long parse_environment_int(std::string_view name, std::string_view text, long low, long high);

// Returns ZERORUN_COMM_TIMEOUT (in seconds) if it is set, else `configured`. Throws ConfigError
// unless it is a number above 0 and at most 1e6.
std::chrono::milliseconds comm_timeout(std::chrono::milliseconds configured);

// Throws ConfigError unless a value of OMP_NUM_THREADS is empty or consists of numbers that OpenMP
// accepts ("4", "4,2"). OpenMP itself ignores other text and crashes with too many threads.
void check_thread_count(std::string_view value);

}  // namespace zerorun
