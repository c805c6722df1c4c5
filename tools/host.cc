#include <fmt/format.h>
#include <fmt/ranges.h>
#include <hwy/highway.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "config/env.h"
#include "core/format_bytes.h"
#include "launcher/environment.h"
#include "launcher/program.h"
#include "launcher/ranks/cpus.h"
#include "launcher/ranks/resources.h"
#include "offload/block_io.h"
#include "offload/direct_file.h"
#include "os/cgroup.h"
#include "os/host_limits.h"
#include "os/process_identity.h"
#include "tools/commands.h"
#include "zerorun/device.h"
#include "zerorun/version.h"

namespace zerorun {

namespace {

std::string describe_gpus() {
  const int gpus = count_gpus();
  const auto visible =
      visible_gpus(find_variable(inherited_environment(), "CUDA_VISIBLE_DEVICES"), gpus);
  std::string text = fmt::format("{} on this machine, {} visible", gpus, visible.size());
  const std::vector<std::optional<int>> nodes = gpu_nodes(visible);
  for (size_t i = 0; i < nodes.size(); ++i) {
    text += fmt::format("{} {}: {}", i == 0 ? "; NUMA node of GPU" : ",", visible[i],
                        nodes[i] ? std::to_string(*nodes[i]) : "unknown");
  }
  return text;
}

std::string describe_cpus() {
  const std::vector<Core> cores = group_by_core(allowed_cpus());
  std::vector<int> cpus;
  for (const Core& core : cores) cpus.insert(cpus.end(), core.cpus.begin(), core.cpus.end());
  std::ranges::sort(cpus);
  std::string text =
      fmt::format("{} (cores: {}, NUMA nodes: {}, best instructions: {})", format_cpu_list(cpus),
                  cores.size(), count_nodes(cores),
                  // Highway numbers its targets from the best one up.
                  hwy::TargetName(hwy::SupportedTargets() & -hwy::SupportedTargets()));
  if (const auto quota = ControlGroup().cpu_quota()) {
    text += fmt::format(", time for {:.1f} CPUs", *quota);
  }
  return text;
}

std::string describe_memory() {
  std::string text = fmt::format("{}, {} available", format_bytes(total_memory()),
                                 format_bytes(host_limits().available_bytes()));
  if (const auto limit = ControlGroup().memory_limit()) {
    text += fmt::format(", limited to {}", format_bytes(static_cast<size_t>(*limit)));
  }
  return text;
}

std::string describe_libraries() {
  return fmt::format("fmt {}.{}.{}, nlohmann/json {}.{}.{}, Highway {}.{}.{}", FMT_VERSION / 10000,
                     FMT_VERSION / 100 % 100, FMT_VERSION % 100, NLOHMANN_JSON_VERSION_MAJOR,
                     NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH, HWY_MAJOR, HWY_MINOR,
                     HWY_PATCH);
}

}  // namespace

std::string host_report() {
  const auto programs = bundled_programs(ProgramSearch::here().launcher_directory);
  std::string text;
  const auto line = [&](std::string_view name, std::string_view value) {
    text += fmt::format("{:<10} {}\n", name, value);
  };
  line("zerorun", ZERORUN_VERSION);
  line("host", host_name());
  line("GPUs", describe_gpus());
  for (const std::string& of_cuda : ask_about_cuda(driver_patience())) line("CUDA", of_cuda);
  line("CPUs", describe_cpus());
  line("memory", describe_memory());
  line("programs", programs.empty() ? "none" : fmt::format("{}", fmt::join(programs, ", ")));
  line("compiler", __VERSION__);
  line("libraries", describe_libraries());
  return text + "\n" + environment_report();
}

std::string environment_report() {
  std::string text =
      "environment variables that zerorun reads, with the values of those that are set\n";
  for (const EnvironmentVariable& variable : environment_variables()) {
    text += fmt::format("  {:<28} {}\n", variable.name, variable.meaning);
    if (const auto value = read_environment(variable.name)) {
      const bool secret = variable.name == "ZERORUN_JOB_SECRET";
      text += fmt::format("  {:<28}   = {}\n", "", secret ? "(secret)" : *value);
    }
  }
  return text;
}

namespace {

constexpr uint64_t kMemory = uint64_t{64} << 20;  // memory of the blocks
constexpr double kGB = 1e9;

// Transfers the whole file once in blocks of `block` bytes, `depth` at a time. Returns bytes per
// second.
double measure(const DirectFile& file, std::span<std::byte> memory, Direction direction,
               int64_t block, int depth, std::string& way) {
  const std::vector<std::span<std::byte>> all = {memory};
  const auto io = make_block_io(file.open(), {.block_size = block, .queue_depth = depth}, all);
  way = io->name();
  return transfer_rate(*io, direction, memory, static_cast<size_t>(block), file.nbytes());
}

}  // namespace

void bench_nvme(const std::string& folder, uint64_t nbytes,
                const std::function<void(const std::string&)>& print) {
  const DirectFile file(folder, "benchmark", nbytes,
                        {.folder = "bench nvme:",
                         .content = "the file to measure with",
                         .instead = "measure with less (--gib)"});
  const auto device = make_cpu_device();
  const Buffer buffer = device->allocate_pinned(kMemory);
  device->fill(device->inline_stream(), view_of(buffer, DType::fp32, kMemory / sizeof(float)),
               1.0F);
  const std::span<std::byte> memory(buffer.data(), kMemory);
  std::string way;
  // Writes the file first, because blocks that were never written are faster to read and slower to
  // write.
  measure(file, memory, Direction::write, 1 << 20, 8, way);
  print(fmt::format("{}: {:.1f} GB, direct I/O through {}", folder,
                    static_cast<double>(nbytes) / kGB, way));
  print(fmt::format("{:>10}{:>8}{:>12}{:>12}", "block", "depth", "read GB/s", "write GB/s"));
  struct {
    double both, read, write;
    int64_t block;
    int depth;
  } best = {};
  for (const int64_t block : {int64_t{128} << 10, int64_t{1} << 20, int64_t{8} << 20}) {
    for (const int depth : {1, 8, 32}) {
      const double read = measure(file, memory, Direction::read, block, depth, way);
      const double write = measure(file, memory, Direction::write, block, depth, way);
      print(fmt::format("{:>6} KiB{:>8}{:>12.2f}{:>12.2f}", block >> 10, depth, read / kGB,
                        write / kGB));
      const double both = 1 / (1 / read + 1 / write);
      if (both > best.both) best = {both, read, write, block, depth};
    }
  }
  // Adam: master and two moments in fp32, each read and written once.
  constexpr double kStateBytes = 12e9;
  print(fmt::format("best: \"aio\": {{\"block_size\": {}, \"queue_depth\": {}}}", best.block,
                    best.depth));
  print(
      fmt::format("a step of Adam takes about {:.1f} s per billion parameters that this host "
                  "offloads (12 GB read in {:.1f} s, 12 GB written in {:.1f} s)",
                  kStateBytes / best.both, kStateBytes / best.read, kStateBytes / best.write));
}

}  // namespace zerorun
