// Parameters of stage 3 that rest away from the device; GroupMixTest has their bits.

#include "core/check.h"
#include "tests/zero/toy_run.h"

namespace zerorun::testing {
namespace {

namespace fs = std::filesystem;

// Evaluation between steps, states that are read and changed there, and an optimizer of the
// caller's.
uint64_t train_with_access(Config config, bool external) {
  if (external) config.optimizer.type = std::string(kExternalOptimizer);
  return hash_after({config}, [&](Engine& engine, Communicator& comm) {
    double seen = 0;
    for (int64_t step = 0; step < 3; ++step) {
      for (const std::string module : {"h.1", "embed", "h.0", "h.0"}) {
        seen += ToyModel::full_values(engine, engine.parameter_id(module + ".weight"))[3];
      }
      ToyModel::micro_step(engine, comm.rank(), 0, step);
      external ? engine.step(descent(0.5F)) : engine.step();
      for (const StateInterval& part : engine.states().state_intervals()) {
        const bool frozen = part.master.data == nullptr;
        const TensorView view = frozen ? part.param : part.master;
        for (int64_t i = 0; i < part.numel; ++i) {
          ToyModel::store(view, i, ToyModel::load(view, i) * (frozen ? 2.0F : 0.5F));
        }
      }
      engine.states().refresh_from_masters();
    }
    EXPECT_TRUE(std::isfinite(seen));
  });
}

TEST(OffloadParam, StatesAndFrozenParametersAreReadAndChangedBetweenSteps) {
  for (const bool external : {false, true}) {
    const Config config = base_config(3);
    const uint64_t expected = train_with_access(config, external);
    EXPECT_NE(expected, toy_train(config, 2, 3).hash);
    for (const int64_t in_cpu : {0, 1000}) {
      Config other = param_on_nvme(config);
      other.offload.param.max_in_cpu = in_cpu;
      EXPECT_EQ(train_with_access(other, external), expected) << external << " " << in_cpu;
    }
  }
}

TEST(OffloadParam, OnNvmeOnlyWhatIsUsedIsInMemoryAndStepsAllocateNothing) {
  Config config = param_on_nvme(base_config(3));
  config.zero.param_persistence_threshold = 0;
  config.zero.max_reuse_distance = 0;
  config.zero.prefetch_bucket_size = 500;
  run_engines({config}, [&](Engine& engine, Communicator& comm) {
    const auto use = [&](MemoryCategory category) { return engine.device().memory_use(category); };
    int64_t sharded = 0;
    for (const ParameterId id : parameters_of(engine)) {
      if (engine.is_sharded(id)) sharded += engine.numel(id) * 2;
    }
    EXPECT_LT(use(MemoryCategory::parameters).peak_bytes, sharded / 8);
    int64_t held = 0;
    engine.states().visit_states(StateAccess::shape,
                                 [&](const StateInterval& part) { held += part.numel; });
    EXPECT_GE(use(MemoryCategory::nvme).live_bytes, held * 2 - 1024);
    // Five buffers of one page: a chunk has at most 300 elements.
    EXPECT_EQ(use(MemoryCategory::pinned).peak_bytes, 5 * 4096);
    expect_steps_allocate_nothing(engine, comm, config);
  });
}

TEST(OffloadParam, MaxInCpuIsWhatStaysInMemory) {
  const std::vector<ParameterSpec> specs = {{"a", {1000, 100}, "a", 0, true, ""},
                                            {"b", {1000, 100}, "b", 0, false, ""}};
  for (const auto& [in_cpu, memory, file] : std::vector<std::array<int64_t, 3>>{
           {0, 0, 200'000}, {100'200, 100'000, 100'000}, {1'000'000'000, 200'000, 0}}) {
    run_ranks(1, [&, in_cpu = in_cpu, memory = memory, file = file](Communicator& comm) {
      const auto device = make_cpu_device();
      Config config = param_on_nvme(base_config(3));
      config.offload.sub_group_size = 100'000;
      config.offload.param.max_in_cpu = in_cpu;
      ::testing::internal::CaptureStderr();
      const auto engine = Engine::create(config, *device, comm, specs, ToyModel::groups());
      const std::string said = ::testing::internal::GetCapturedStderr();
      EXPECT_EQ(
          said.find("no parameter is on NVMe: all of each rank's fit into the 1000000000 "
                    "elements of /zero_optimization/offload_param/max_in_cpu") != std::string::npos,
          file == 0)
          << said;
      const int64_t buffers = file > 0 ? 5 * 200'704 : 0;
      EXPECT_NEAR(device->memory_use(MemoryCategory::pinned).live_bytes, buffers + memory * 2,
                  8192);
      EXPECT_NEAR(device->memory_use(MemoryCategory::nvme).live_bytes, file * 2, 8192);
    });
  }
}

TEST(OffloadParam, ThatNoneIsLargeEnoughToMoveIsSaid) {
  run_ranks(1, [](Communicator& comm) {
    const auto device = make_cpu_device();
    Config config = param_on_nvme(base_config(3));
    config.zero.param_persistence_threshold = 1 << 30;
    ::testing::internal::CaptureStderr();
    const auto engine = Engine::create(config, *device, comm, toy_specs(), ToyModel::groups());
    EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                HasSubstr("no parameter is on NVMe: none has more than the 1073741824 elements"));
  });
}

// Behind the engine's back: one bit in each block of files without a name in the folder of the
// build.
int damage_files() {
  int damaged = 0;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    const std::string target = fs::read_symlink(entry.path(), ignored).string();
    if (!target.starts_with(test_paths::build()) || !target.ends_with(" (deleted)")) continue;
    const int fd = ::open(entry.path().c_str(), O_RDWR | O_CLOEXEC);  // without O_DIRECT
    std::byte byte{};
    for (off_t at = 0; ::pread(fd, &byte, 1, at) == 1; at += 4096) {
      byte ^= std::byte{4};
      EXPECT_EQ(::pwrite(fd, &byte, 1, at), 1);
      ++damaged;
    }
    EXPECT_EQ(::fdatasync(fd), 0);
    ::close(fd);
  }
  return damaged;
}

TEST(OffloadParam, ADamagedBlockIsAnErrorWithFileAndOffsetAndNeverAWeight) {
  run_engines({param_on_nvme(base_config(3)), 1}, [](Engine& engine, Communicator&) {
    engine.states().parameter_hash();
    EXPECT_GT(damage_files(), 0);
    EXPECT_THAT(error_of<IoError>([&] { engine.gather(engine.module_id("h.1")); }),
                AllOf(HasSubstr("parameters of rank 0: the 4096 bytes at offset "),
                      HasSubstr("are not what was written there")));
  });
}

// Peers cannot look into a rank's file, so gathers are collectives: a difference is an error that
// names both sides, not a wait.
TEST(OffloadParam, RanksThatGatherDifferentModulesAreToldSo) {
  run_engines({param_on_nvme(base_config(3))}, [](Engine& engine, Communicator& comm) {
    EXPECT_THAT(error_of<CommError>(
                    [&] { engine.gather(engine.module_id(comm.rank() == 0 ? "h.0" : "h.1")); }),
                AllOf(HasSubstr("h.0.weight"), HasSubstr("h.1")));
  });
}

TEST(OffloadParam, WhatTheFolderCannotTakeIsAnErrorBeforeTraining) {
  const auto expect_error = [](const std::string& folder, const std::string& part) {
    Config config = param_on_nvme(base_config(3));
    config.offload.param.nvme_path = folder;
    std::vector<ParameterSpec> specs = toy_specs();
    if (part == "cannot reserve") {
      const auto free = static_cast<int64_t>(fs::space(folder).available);
      specs.push_back({"huge", {free / 2048 + (1 << 20), 1024}, "x", 0, false, ""});
      config.offload.sub_group_size = 1 << 30;
    }
    EXPECT_THAT(
        refusal({config, 1, {}, specs}),
        AllOf(HasSubstr("/zero_optimization/offload_param/nvme_path " + folder), HasSubstr(part)));
  };
  expect_error("/no/such/folder", "No such file or directory");
  expect_error("/dev/shm", "a folder in memory (tmpfs)");
  expect_error(test_paths::build(), "cannot reserve");
}

}  // namespace
}  // namespace zerorun::testing
