#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "launcher/environment.h"
#include "launcher/ranks/cpus.h"
#include "launcher/ranks/resources.h"
#include "os/host_limits.h"

namespace zerorun {

// What `zerorun doctor` has found out about one need of a job. Each check judges facts that its
// caller gives it.
struct Check {
  enum class State : uint8_t {
    good,
    advice,   // jobs run, but slower than they could, or some of them do not
    problem,  // jobs fail
  };
  std::string name;
  State state = State::good;
  std::string found{};
  std::string change{};  // what to do; empty if it is good
};

// `lines`: about CUDA's libraries (ask_about_cuda).
Check check_driver(int gpus, const CudaProblem& cuda);
Check check_cuda_libraries(int gpus, const std::vector<std::string>& lines);
Check check_gpu_links(const std::vector<std::string>& lines);
// The library for ranks on several hosts. `error`: why it cannot be opened.
Check check_gloo(const std::string& version, const std::string& error);
// `size` of the file system at /dev/shm; nullopt: it is missing.
Check check_shared_memory(std::optional<uint64_t> size, uint64_t free);
Check check_locked_memory(std::optional<int64_t> limit);
Check check_open_files(uint64_t limit, uint64_t most);
// `memory`: of the machine, in bytes.
Check check_memory_limit(const ControlGroup& group, uint64_t memory);
Check check_cpu_time(const ControlGroup& group, int cpus);
// `allowed`: the cores that this process may use, of `online` CPUs, for so many GPUs.
Check check_cores(const std::vector<Core>& allowed, int online, int gpus);
// `output`: what two ranks printed that exchanged data, of a job that ended with this code.
Check check_exchange(const std::string& output, int code, bool in_time);
Check check_port(uint16_t port);
// Whether this host knows the others by their names. `here`: its own name.
Check check_names(const std::filesystem::path& hostfile, const std::string& here);
// Writes a file to the folder and removes it.
Check check_disk(const std::filesystem::path& folder, uint64_t nbytes);
// `python`: the interpreter that runs ranks.
Check check_python(const std::filesystem::path& python, const Environment& environment,
                   const std::filesystem::path& launcher_directory);
Check check_pytorch(const std::filesystem::path& python, const Environment& environment);

struct DoctorOptions {
  std::string hostfile{};  // empty: no names are checked
  std::string folder = ".";
  int port = 29500;
  bool json = false;
};

// Checks this machine for what jobs need.
std::vector<Check> examine(const DoctorOptions& options);
// The text, or JSON, of `zerorun doctor`.
std::string doctor_text(const std::vector<Check>& checks);
std::string doctor_json(const std::vector<Check>& checks);

// Runs a rank of the job that tests the exchange between ranks, which the environment describes.
// Prints the result and returns the exit code.
int run_doctor_rank();
inline constexpr const char* kDoctorRank = "--doctor_rank";

}  // namespace zerorun
