#include <fcntl.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <utility>

#include "core/check.h"
#include "core/format_bytes.h"
#include "core/printable.h"
#include "launcher/hosts/cluster.h"
#include "launcher/hosts/host_filter.h"
#include "launcher/job.h"
#include "launcher/program.h"
#include "os/address.h"
#include "os/open_file.h"
#include "os/uninterrupted.h"
#include "tools/doctor/doctor.h"

namespace zerorun {

namespace {

using State = Check::State;

constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr uint64_t kMiB = uint64_t{1} << 20;

std::string bytes(uint64_t nbytes) { return format_bytes(static_cast<size_t>(nbytes)); }

std::vector<std::string> lines_with(const std::vector<std::string>& lines, std::string_view text) {
  std::vector<std::string> found;
  std::ranges::copy_if(lines, std::back_inserter(found),
                       [text](const auto& line) { return line.find(text) != std::string::npos; });
  return found;
}

Check good(std::string name, std::string found) {
  return {std::move(name), State::good, std::move(found)};
}
Check advice(std::string name, std::string found, std::string change) {
  return {std::move(name), State::advice, std::move(found), std::move(change)};
}
Check problem(std::string name, std::string found, std::string change) {
  return {std::move(name), State::problem, std::move(found), std::move(change)};
}

// What is wrong with the name of a host; empty if nothing is. Adds its address to `known`.
std::string problem_of_name(const std::string& host, const std::string& here,
                            std::map<std::string, std::string>& known) {
  try {
    const std::string address = text_of(*look_up(host, 0));
    const bool own = is_this_host(host, here);
    if (!own && resolves_to_loopback(host)) {
      return fmt::format("{} is {}, this host's own loopback", host, address);
    }
    const auto [other, is_new] = known.insert({address, host});
    if (!is_new) return fmt::format("{} and {} are both {}", other->second, host, address);
  } catch (const CommError& error) {
    return error.what();
  }
  return {};
}

}  // namespace

Check check_driver(int gpus, const CudaProblem& cuda) {
  if (gpus == 0) return good("driver", "no GPU: ranks run on CPUs");
  const std::string found = fmt::format("{} GPU{}", gpus, gpus == 1 ? "" : "s");
  if (cuda.text.empty()) return good("driver", found);
  return problem("driver", found + ": " + cuda.text,
                 "install or restart NVIDIA's driver until nvidia-smi lists the GPUs");
}

Check check_cuda_libraries(int gpus, const std::vector<std::string>& lines) {
  if (gpus == 0) return good("libraries", "not needed without a GPU");
  const auto missing = lines_with(lines, "missing");
  if (missing.empty()) return good("libraries", fmt::format("{}", fmt::join(lines, "; ")));
  return problem(
      "libraries", fmt::format("{}", fmt::join(missing, "; ")),
      "install them with pip, as PyTorch's CUDA packages have them, or set LD_LIBRARY_PATH");
}

Check check_gpu_links(const std::vector<std::string>& lines) {
  if (lines_with(lines, "no peer access").empty()) {
    return good("P2P", "every GPU reads every other, or there is one at most");
  }
  return advice("P2P", "between some GPUs there is no peer access: copies go through the host",
                "disable ACS and the IOMMU's translation in the BIOS or kernel (iommu=pt); in a "
                "virtual machine pass the GPUs through with their switch");
}

Check check_gloo(const std::string& version, const std::string& error) {
  if (error.empty()) return good("Gloo", version);
  return problem("Gloo", error, "install zerorun again: ranks on several hosts need this library");
}

Check check_shared_memory(std::optional<uint64_t> size, uint64_t free) {
  const std::string found =
      size ? fmt::format("{}, {} free", bytes(*size), bytes(free)) : std::string("missing");
  if (size && free >= kGiB) return good("/dev/shm", found);
  return advice(
      "/dev/shm", found,
      "NCCL and workers of data loaders need 1 GiB or more there: docker run --shm-size=8g (or "
      "--ipc=host), or mount -o remount,size=8g /dev/shm; remove files that ended jobs left");
}

Check check_locked_memory(std::optional<int64_t> limit) {
  if (!limit) return good("locked memory", "no limit");
  const std::string found = "limited to " + bytes(static_cast<uint64_t>(*limit));
  if (static_cast<uint64_t>(*limit) >= kGiB) return good("locked memory", found);
  return advice("locked memory", found,
                "ulimit -l unlimited (docker run --ulimit memlock=-1): offloading to disk and "
                "InfiniBand pin memory");
}

Check check_open_files(uint64_t limit, uint64_t most) {
  constexpr uint64_t kEnough = 4096;
  const std::string found = fmt::format("at most {}", limit);
  if (limit >= kEnough) return good("open files", found);
  return advice("open files", found,
                most >= kEnough
                    ? fmt::format("ulimit -n {}", std::min<uint64_t>(most, 65536))
                    : fmt::format("raise the hard limit, which is {}: nofile in "
                                  "/etc/security/limits.conf, docker run --ulimit nofile=65536",
                                  most));
}

Check check_memory_limit(const ControlGroup& group, uint64_t memory) {
  const std::optional<int64_t> limit = group.memory_limit();
  if (!limit || static_cast<uint64_t>(*limit) >= memory) {
    return good("memory", bytes(memory) + ", no limit of a control group");
  }
  const auto left =
      static_cast<uint64_t>(std::max<int64_t>(group.memory_available().value_or(0), 0));
  return advice("memory",
                fmt::format("{}; the control group allows {}, of which {} are left", bytes(memory),
                            bytes(static_cast<uint64_t>(*limit)), bytes(left)),
                "give the container or the Slurm job more memory (docker run --memory, sbatch "
                "--mem=0): beyond the limit the kernel kills ranks");
}

Check check_cpu_time(const ControlGroup& group, int cpus) {
  const std::optional<double> quota = group.cpu_quota();
  if (!quota || *quota >= cpus) return good("CPU time", "no limit of a control group");
  return advice("CPU time",
                fmt::format("the control group allows the time of {:.1f} of {} CPUs", *quota, cpus),
                "raise the quota (docker run --cpus, resources.limits.cpu), or choose CPUs instead "
                "(--cpuset-cpus): ranks that use up a quota stop until the next period");
}

Check check_cores(const std::vector<Core>& allowed, int online, int gpus) {
  const int cpus = count_cpus(allowed);
  const int cores = static_cast<int>(allowed.size());
  const std::string found =
      fmt::format("{} of {} CPUs, {} cores, {} NUMA node{}", cpus, online, cores,
                  count_nodes(allowed), count_nodes(allowed) == 1 ? "" : "s");
  if (cpus == online && cores >= gpus) return good("cores", found);
  return advice(
      "cores", found,
      cores < gpus
          ? "ranks are not bound, because there are fewer cores than GPUs: allow one core per GPU"
          : "this process is bound to some of the CPUs; if that is not meant, ask for all (srun "
            "--cpus-per-task, --cpu-bind=none; taskset -cp)");
}

Check check_exchange(const std::string& output, int code, bool in_time) {
  constexpr std::string_view kMark = "exchange: ";
  const size_t at = output.find(kMark);
  if (in_time && code == 0 && at != std::string::npos) {
    const size_t begin = at + kMark.size();
    return good("exchange of 1 MB", output.substr(begin, output.find('\n', at) - begin));
  }
  return problem(
      "exchange of 1 MB",
      in_time ? fmt::format("a job of two ranks ended with {}: {}", code, printable_lines(output))
              : "a job of two ranks did not end in time: " + printable_lines(output),
      "the text is that of the job; NCCL_DEBUG=INFO tells more, and with GPUs "
      "CUDA_VISIBLE_DEVICES= (nothing) tells whether they are the cause");
}

Check check_port(uint16_t port) {
  try {
    reserve_open_port(port);
    return good("port", fmt::format("{} is free", port));
  } catch (const CommError& error) {
    return problem(
        "port", error.what(),
        fmt::format(
            "give jobs another --master_port, or end what listens there (ss -ltnp sport = :{})",
            port));
  }
}

Check check_names(const std::filesystem::path& hostfile, const std::string& here) {
  const auto hosts = read_hostfile(hostfile);
  if (!hosts) fail<ConfigError>("--hostfile {} does not exist", printable(hostfile.string()));
  std::map<std::string, std::string> known;
  std::vector<std::string> problems;
  for (const HostSlots& host : *hosts) {
    std::string wrong = problem_of_name(host.host, here, known);
    if (!wrong.empty()) problems.push_back(std::move(wrong));
  }
  if (problems.empty()) {
    return good("names", fmt::format("{} hosts, all known here", hosts->size()));
  }
  return problem("names", fmt::format("{}", fmt::join(problems, "; ")),
                 "correct DNS or /etc/hosts, the same on all hosts, or write addresses into the "
                 "hostfile; run zerorun doctor on every host");
}

Check check_disk(const std::filesystem::path& folder, uint64_t nbytes) {
  const std::filesystem::path path = folder / fmt::format(".zerorun-doctor-{}", getpid());
  const FileDescriptor file = open_file(path, O_WRONLY | O_CREAT | O_EXCL);
  const std::string block(kMiB, 'z');
  const auto begin = std::chrono::steady_clock::now();
  int error = file ? 0 : errno;
  for (uint64_t done = 0; error == 0 && done < nbytes;) {
    const ssize_t count =
        uninterrupted([&] { return write(file.get(), block.data(), block.size()); });
    if (count < 0) error = errno;
    done += static_cast<uint64_t>(std::max<ssize_t>(count, 0));
  }
  if (error == 0 && fdatasync(file.get()) != 0) error = errno;
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
  if (file) unlink(path.c_str());
  if (error != 0) {
    return problem("disk",
                   fmt::format("cannot write to {}: {}", folder.string(), std::strerror(error)),
                   "give --folder the folder of the checkpoints, on a disk with room, and the "
                   "right to write there");
  }
  constexpr double kSlow = 0.1;  // GB/s
  const double rate = static_cast<double>(nbytes) / 1e9 / time.count();
  const std::string found = fmt::format("{}: {:.2f} GB/s", folder.string(), rate);
  if (rate >= kSlow) return good("disk", found);
  return advice(
      "disk", found,
      fmt::format(
          "a checkpoint of 10 GB takes {:.0f} s there: save to a faster disk, or asynchronously",
          10 / rate));
}

Check check_python(const std::filesystem::path& python, const Environment& environment,
                   const std::filesystem::path& launcher_directory) {
  const std::string absent = absent_package(python, environment, launcher_directory);
  if (absent.empty()) return good("Python", python.string() + " has zerorun");
  const size_t end = absent.find_first_of(";,");
  return advice("Python", absent.substr(0, end),
                "for programs in Python" + absent.substr(std::min(end, absent.size())));
}

Check check_pytorch(const std::filesystem::path& python, const Environment& environment) {
  if (has_package(python, "torch", environment)) {
    return good("PyTorch", python.string() + " has torch");
  }
  return advice("PyTorch", python.string() + " does not have torch",
                fmt::format("{} -m pip install torch, or activate the environment that has it",
                            python.string()));
}

}  // namespace zerorun
