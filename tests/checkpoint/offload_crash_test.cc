#include "tests/checkpoint/toy_job.h"
#include "tests/refused_calls.h"

namespace zerorun {
namespace {

namespace fs = std::filesystem;
using testing::read_file;
using testing::TemporaryDirectory;

constexpr int64_t kSteps = 3;
constexpr int kPoints = 25;

Config nvme_config() {
  Config config = testing::job_config(3, DType::bf16, OffloadDevice::nvme);
  config.offload.optimizer.nvme_path = "nvme";
  config.offload.param.device = OffloadDevice::nvme;
  config.offload.param.nvme_path = "nvme";
  config.offload.param.max_in_cpu = 0;
  config.offload.sub_group_size = 1500;
  config.offload.aio.block_size = 8192;
  return config;
}

// The process that is to fail does this, in its working directory: trains from the last checkpoint
// to the end, saves after each step, and writes the parameters' hash. Where there is a file "full",
// the disk is full after as many microseconds as it says.
TEST(OffloadCrashChild, DISABLED_Trains) {
  if (const int64_t delay = std::atoll(read_file("full").c_str()); delay > 0) {
    std::thread([delay] {
      std::this_thread::sleep_for(std::chrono::microseconds(delay));
      testing::refuse_calls({SYS_pwrite64, SYS_fallocate, SYS_ftruncate, SYS_io_uring_enter},
                            ENOSPC, testing::RefusedTo::all_threads);
    }).detach();
  }
  testing::with_engine(2, nvme_config(), [](Engine& engine, Communicator& comm) {
    if (fs::exists("checkpoints/latest")) load_checkpoint(engine.states(), comm, "checkpoints");
    while (engine.states().progress().step_count < kSteps) {
      testing::train(engine, comm, 1);
      save_checkpoint(engine.states(), comm, {.directory = "checkpoints"});
    }
    const uint64_t hash = engine.states().parameter_hash();
    if (comm.rank() == 0) std::ofstream("hash") << hash;
  });
}

// Starts the child in `folder`; kills it after `delay`, or waits for its end. Returns how it ended,
// as waitpid() says: 0 when it trained to the end.
int run_child(const fs::path& folder, std::optional<std::chrono::microseconds> delay) {
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
  return status;
}

// Checkpoints are in memory, so that the test is short; offloaded states need a disk.
fs::path prepare(const TemporaryDirectory& directory) {
  const fs::path disk = fs::path(test_paths::build()) / ("nvme-" + std::to_string(::getpid()));
  fs::create_directory(disk);
  fs::create_directory_symlink(disk, directory.path() / "nvme");
  return directory.path();
}

// A way to make it fail at a point, and to bring it to an end.
using Fail = std::function<void(const fs::path& folder, std::chrono::microseconds delay)>;

// Whatever the moment it failed at: no file is left, and who starts again ends where it would have.
void expect_recovery(const Fail& fail) {
  const TemporaryDirectory whole;
  const auto start = std::chrono::steady_clock::now();
  ASSERT_EQ(run_child(prepare(whole), std::nullopt), 0);
  const auto duration = std::chrono::duration_cast<std::chrono::microseconds>(
      std::chrono::steady_clock::now() - start);
  const std::string expected = read_file(whole.path() / "hash");
  ASSERT_FALSE(expected.empty());
  std::mt19937_64 random(11);
  for (int point = 0; point < kPoints; ++point) {
    const TemporaryDirectory directory;
    const fs::path folder = prepare(directory);
    const std::chrono::microseconds delay(
        1 + random() % static_cast<uint64_t>(std::max<int64_t>(1, duration.count())));
    fail(folder, delay);
    EXPECT_TRUE(fs::is_empty(folder / "nvme")) << "failed after " << delay.count() << " us";
    ASSERT_EQ(run_child(folder, std::nullopt), 0) << "failed after " << delay.count() << " us";
    EXPECT_EQ(read_file(folder / "hash"), expected) << "failed after " << delay.count() << " us";
    EXPECT_TRUE(fs::is_empty(folder / "nvme"));
  }
  EXPECT_TRUE(fs::remove(fs::read_symlink(whole.path() / "nvme")));  // only when it is empty
}

TEST(OffloadCrash, KilledAnywhereItLeavesNoFileAndResumesWithTheSameWeights) {
  expect_recovery(
      [](const fs::path& folder, std::chrono::microseconds delay) { run_child(folder, delay); });
}

TEST(OffloadCrash, OnADiskThatFillsUpAnywhereItEndsAndResumesWithTheSameWeights) {
  int failures = 0;
  expect_recovery([&](const fs::path& folder, std::chrono::microseconds delay) {
    testing::write_file(folder / "full", std::to_string(delay.count()));
    const int status = run_child(folder, std::nullopt);
    EXPECT_TRUE(WIFEXITED(status)) << "an error, and no death, after " << delay.count() << " us";
    if (status != 0) ++failures;
    fs::remove(folder / "full");
  });
  EXPECT_GT(failures, kPoints / 5);  // the others had written all before, or not begun
}

}  // namespace
}  // namespace zerorun
