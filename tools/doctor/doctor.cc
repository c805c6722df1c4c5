#include "tools/doctor/doctor.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>

#include "comm/links.h"
#include "core/check.h"
#include "device/plugin.h"
#include "launcher/options.h"
#include "launcher/program.h"
#include "launcher/ranks/report.h"
#include "launcher/ranks/resources.h"
#include "os/process_identity.h"
#include "zerorun/communicator.h"

namespace zerorun {

namespace {

constexpr int64_t kNumel = int64_t{1} << 18;  // 1 MiB of fp32

constexpr std::array<const char*, 3> kStates = {"good", "advice", "PROBLEM"};

const char* text_of(Check::State state) { return kStates[static_cast<size_t>(state)]; }

Check examine_gloo() {
  try {
    const auto library = open_plugin(kGlooLibrary);
    return check_gloo(plugin_entry<GlooBackend>(library, kGlooBackendEntry).describe(), "");
  } catch (const DeviceError& error) {
    return check_gloo("", error.what());
  }
}

Check examine_shared_memory() {
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space("/dev/shm", error);
  if (error) return check_shared_memory(std::nullopt, 0);
  return check_shared_memory(space.capacity, space.available);
}

// A job of two ranks that run this program: the launcher and the transport as every job has them.
Check examine_exchange(int gpus) {
  constexpr std::chrono::seconds kPatience{60};
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const ChildAnswer answer = ask_child(
      [&self, gpus](int out) {
        dup2(out, STDOUT_FILENO);
        dup2(out, STDERR_FILENO);
        const std::string accelerator = gpus < 2 ? "cpu" : "cuda";
        const std::vector<std::string> words = {
            "--standalone", "--accelerator", accelerator, "--num_gpus", "2",
            "--quiet",      "--no_python",   self,        kDoctorRank};
        try {
          return launch(words, parse_options(words));
        } catch (const std::exception& error) {
          fmt::print(stderr, "{}\n", error.what());
          return 1;
        }
      },
      kPatience);
  return check_exchange(answer.text, exit_code_of(answer.status), answer.in_time);
}

// The interpreter that runs ranks, and its packages.
std::vector<Check> examine_python(const ProgramSearch& search, const Environment& environment) {
  try {
    const std::filesystem::path python =
        find_program({.name = "torch", .module = true}, search).command.front();
    return {check_python(python, environment, search.launcher_directory),
            check_pytorch(python, environment)};
  } catch (const ConfigError& error) {
    return {{.name = "Python",
             .state = Check::State::advice,
             .found = error.what(),
             .change = "for programs in Python: activate an environment, or name the interpreter "
                       "with ZERORUN_PYTHON"}};
  }
}

}  // namespace

std::vector<Check> examine(const DoctorOptions& options) {
  const Environment environment = inherited_environment();
  std::optional<Check> names;  // first, because it throws if there is no such file
  if (!options.hostfile.empty()) names = check_names(options.hostfile, host_name());
  const int all = count_gpus();
  const int gpus = static_cast<int>(
      visible_gpus(find_variable(environment, "CUDA_VISIBLE_DEVICES"), all).size());
  const std::chrono::seconds patience = driver_patience();
  const CudaProblem problem = gpus > 0 ? ask_for_cuda_problem(patience) : CudaProblem{};
  std::vector<std::string> lines;
  if (gpus > 0 && problem.text.empty()) lines = ask_about_cuda(patience);
  const std::vector<Core> cores = group_by_core(allowed_cpus());
  const ControlGroup group;
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  constexpr uint64_t kDiskBytes = uint64_t{128} << 20;

  std::vector<Check> checks = {
      check_driver(gpus, problem),
      check_cuda_libraries(gpus, lines),
      check_gpu_links(lines),
      examine_gloo(),
      examine_shared_memory(),
      check_locked_memory(host_limits().lockable),
      check_open_files(files.rlim_cur, files.rlim_max),
      check_memory_limit(group, total_memory()),
      check_cpu_time(group, count_cpus(cores)),
      check_cores(cores, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)), gpus),
      examine_exchange(gpus),
      check_port(static_cast<uint16_t>(options.port)),
      check_disk(options.folder, kDiskBytes),
  };
  for (Check& check : examine_python(ProgramSearch::here(), environment)) {
    checks.push_back(std::move(check));
  }
  if (names) checks.push_back(*std::move(names));
  return checks;
}

std::string doctor_text(const std::vector<Check>& checks) {
  std::string text;
  for (const Check& check : checks) {
    text += fmt::format("{:<8} {:<17} {}\n", text_of(check.state), check.name, check.found);
    if (!check.change.empty()) text += fmt::format("{:<8} {:<17} -> {}\n", "", "", check.change);
  }
  const auto count = [&checks](Check::State state) {
    return std::ranges::count_if(checks,
                                 [state](const Check& check) { return check.state == state; });
  };
  return text + fmt::format("{} checks: {} problems, {} with advice\n", checks.size(),
                            count(Check::State::problem), count(Check::State::advice));
}

std::string doctor_json(const std::vector<Check>& checks) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Check& check : checks) {
    const std::string state =
        check.state == Check::State::problem ? "problem" : text_of(check.state);
    list.push_back(
        {{"name", check.name}, {"state", state}, {"found", check.found}, {"change", check.change}});
  }
  return list.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

int run_doctor_rank() {
  constexpr std::chrono::seconds kPatience{30};
  constexpr int kRounds = 5;
  const auto device = make_device(Accelerator::automatic);
  const auto comm = connect(rank_from_environment(), kPatience, device);
  const auto memory = comm->allocate(kNumel * sizeof(float), Sharing::per_rank);
  ZR_CHECK(memory, "memory of one rank is always to be had");
  const TensorView data = view_of(*memory, DType::fp32, kNumel);
  Stream& stream = device->inline_stream();
  double best = 1e9;
  std::vector<float> sums(kNumel);
  for (int round = 0; round < kRounds; ++round) {
    device->fill(stream, data, static_cast<float>(comm->rank() + 1));
    stream.synchronize();
    const auto begin = std::chrono::steady_clock::now();
    comm->all_reduce(data, data, ReduceOp::sum, Output::overwrite, stream, "doctor");
    stream.synchronize();
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    best = std::min(best, time.count());
  }
  device->download(stream, data, sums.data());
  stream.synchronize();
  const auto world = static_cast<float>(comm->world_size());
  const float expected = world * (world + 1) / 2;
  const auto wrong = std::ranges::find_if(sums, [expected](float sum) { return sum != expected; });
  if (wrong != sums.end()) {
    fail<CommError>(
        "the sum over all ranks is {} at element {}, expected {}: the memory or the link between "
        "the devices is faulty",
        *wrong, wrong - sums.begin(), expected);
  }
  if (comm->rank() != 0) return 0;
  fmt::print("exchange: {} ranks ({}) on {} sum 1 MiB in {:.2f} ms\n", comm->world_size(),
             comm->transport(), device->name(), best * 1e3);
  return 0;
}

}  // namespace zerorun
