#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <string>
#include <thread>

#include "tests/checkpoint/temporary_directory.h"
#include "tests/zero/toy_run.h"
#include "zerorun/checkpoint.h"

namespace zerorun {
namespace {

namespace fs = std::filesystem;
using testing::read_file;
using testing::run_ranks;
using testing::TemporaryDirectory;
using testing::toy_initialize;
using testing::toy_specs;
using testing::toy_step;
using testing::ToyModel;

constexpr int64_t kSteps = 3;
constexpr int kPoints = 50;

Config nvme_config() {
  Config config;
  config.batch.accumulation_steps = 1;
  config.precision.param_dtype = DType::bf16;
  config.zero.stage = 3;
  config.zero.param_persistence_threshold = 0;
  config.offload.optimizer.device = OffloadDevice::nvme;
  config.offload.optimizer.nvme_path = "nvme";
  config.offload.param.device = OffloadDevice::nvme;
  config.offload.param.nvme_path = "nvme";
  config.offload.param.max_in_cpu = 0;
  config.offload.sub_group_size = 1500;
  config.offload.aio.block_size = 8192;
  return config;
}

// What the killed process does, in its working directory: trains from the last checkpoint to the
// end, saves after each step, and writes the parameters' hash.
TEST(OffloadCrashChild, DISABLED_Trains) {
  run_ranks(2, [](Communicator& comm) {
    const auto device = make_cpu_device();
    const Config config = nvme_config();
    const auto engine = Engine::create(config, *device, comm, toy_specs(), ToyModel::groups());
    toy_initialize(*engine);
    if (fs::exists("checkpoints/latest")) load_checkpoint(*engine, comm, "checkpoints");
    for (int64_t step = engine->progress().step_count; step < kSteps; ++step) {
      toy_step(*engine, comm, config, step);
      save_checkpoint(*engine, comm, {.directory = "checkpoints"});
    }
    const uint64_t hash = engine->parameter_hash();
    if (comm.rank() == 0) std::ofstream("hash") << hash;
  });
}

// Starts the child in `folder`; kills it after `delay`, or waits for its end.
bool run_child(const fs::path& folder, std::optional<std::chrono::microseconds> delay) {
  const std::string self = fs::read_symlink("/proc/self/exe");
  const std::string where = folder.string();
  const pid_t child = ::fork();
  if (child == 0) {
    if (::chdir(where.c_str()) != 0) ::raise(SIGKILL);
    // Quiet: what a killed test says is of no interest.
    if (std::freopen("/dev/null", "w", stdout) == nullptr) ::raise(SIGKILL);
    ::execl(self.c_str(), self.c_str(), "--gtest_filter=OffloadCrashChild.DISABLED_Trains",
            "--gtest_also_run_disabled_tests", nullptr);
    ::raise(SIGKILL);
  }
  if (delay) {
    std::this_thread::sleep_for(*delay);
    ::kill(child, SIGKILL);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// Checkpoints are in memory, so that the test is short; offloaded states need a disk.
fs::path prepare(const TemporaryDirectory& directory) {
  const fs::path disk = fs::path(ZERORUN_BUILD_DIR) / ("nvme-" + std::to_string(::getpid()));
  fs::create_directory(disk);
  fs::create_directory_symlink(disk, directory.path() / "nvme");
  return directory.path();
}

TEST(OffloadCrash, KilledAnywhereItLeavesNoFileAndResumesWithTheSameWeights) {
  const TemporaryDirectory whole;
  const auto start = std::chrono::steady_clock::now();
  ASSERT_TRUE(run_child(prepare(whole), std::nullopt));
  const auto duration = std::chrono::duration_cast<std::chrono::microseconds>(
      std::chrono::steady_clock::now() - start);
  const std::string expected = read_file(whole.path() / "hash");
  ASSERT_FALSE(expected.empty());
  std::mt19937_64 random(11);
  for (int point = 0; point < kPoints; ++point) {
    const TemporaryDirectory directory;
    const fs::path folder = prepare(directory);
    const std::chrono::microseconds delay(
        random() % static_cast<uint64_t>(std::max<int64_t>(1, duration.count())));
    run_child(folder, delay);
    EXPECT_TRUE(fs::is_empty(folder / "nvme")) << "killed after " << delay.count() << " us";
    ASSERT_TRUE(run_child(folder, std::nullopt)) << "killed after " << delay.count() << " us";
    EXPECT_EQ(read_file(folder / "hash"), expected) << "killed after " << delay.count() << " us";
    EXPECT_TRUE(fs::is_empty(folder / "nvme"));
  }
  EXPECT_TRUE(fs::remove(fs::read_symlink(whole.path() / "nvme")));  // only when it is empty
}

}  // namespace
}  // namespace zerorun
