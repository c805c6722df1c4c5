#include "tests/zero/toy_run.h"

namespace zerorun::testing::offload {
namespace {

TEST(Offload, RatioIsThePartOfTheElements) {
  for (const double ratio : {0.0, 0.25, 0.5, 1.0}) {
    const ToyJob job{offloaded(base_config(1), ratio), 1, {}, {{"w", {1000, 1000}, "w"}}};
    run_engines(job, [&](Engine& engine, Communicator&) {
      int64_t on_host = 0;
      for (const StateInterval& part : engine.states().state_intervals()) {
        if (part.on_host) on_host += part.numel;
      }
      EXPECT_NEAR(static_cast<double>(on_host) / 1e6, ratio, 0.001);
      const int64_t on_device = 1'000'000 - on_host;
      EXPECT_NEAR(live_bytes(engine, MemoryCategory::optimizer), on_device * 12, 12 * 1024);
    });
  }
}

// Copies may still run when an engine ends in the middle of a batch, or with an error.
TEST(Offload, AnEngineMayEndBetweenBackwardAndStep) {
  constexpr int64_t kNumel = int64_t{1} << 22;
  for (int stage = 1; stage <= 3; ++stage) {
    Config config = offloaded(base_config(stage));
    config.offload.sub_group_size = kNumel;
    config.zero.reduce_bucket_size = kNumel;
    std::vector<ParameterSpec> specs;
    for (const char* name : {"a", "b", "c", "d"}) specs.push_back({name, {kNumel}, name});
    run_devices({config, 1}, [&](Device& device, Communicator& comm) {
      const auto engine = Engine::create(config, device, comm, specs, ToyModel::groups());
      for (ParameterId id = 0; id < 4; ++id) give_gradient(*engine, id, 1.0F);
      engine->end_micro_step();
    });
  }
}

TEST(Offload, WhatCannotBeMeantIsAnErrorBeforeTraining) {
  const auto expect_error = [](const Config& config, const std::string& part) {
    EXPECT_THAT(refusal({config, 1}), HasSubstr(part));
  };
  expect_error(offloaded(base_config(0)), "needs /zero_optimization/stage 1, 2 or 3, got 0");
  Config nvme = offloaded(base_config(2), 1.0, OffloadDevice::nvme);
  for (const auto& [folder, part] :
       {std::pair("/no/such", "/no/such: No such file or directory; expected a folder on a local"),
        {"/dev/shm", "/dev/shm is a folder in memory (tmpfs)"},
        {"/proc", "nvme_path /proc: cannot create a file: "}}) {
    nvme.offload.optimizer.nvme_path = folder;
    expect_error(nvme, part);
  }
  nvme.optimizer.type = std::string(kExternalOptimizer);
  expect_error(nvme, "the optimizer is the caller's");
  Config param = param_on_nvme(base_config(3));
  param.offload.param.nvme_path = "/dev/shm";
  expect_error(param, "/zero_optimization/offload_param/nvme_path /dev/shm is a folder in memory");
  param.zero.stage = 2;
  expect_error(param, "needs /zero_optimization/stage 3, got 2");
}

TEST(Offload, ParametersForWhichTheDiskHasNoRoomAreAnErrorBeforeTraining) {
  ToyJob job{param_on_nvme(base_config(3)), 1};
  job.config.offload.sub_group_size = 1 << 30;
  const auto free = static_cast<int64_t>(std::filesystem::space(test_paths::build()).available);
  job.specs.push_back({"huge", {free / 2048 + (1 << 20), 1024}, "x", 0, false, ""});
  EXPECT_THAT(refusal(job), HasAll("/zero_optimization/offload_param/nvme_path", "cannot reserve"));
}

// Parameters of stage 3 that rest away from the device; GroupMixTest has their bits.
namespace fs = std::filesystem;

// Evaluation between steps, states that are read and changed there, and a caller's optimizer.
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
    EXPECT_NE(expected, toy_train({config}, 3).hash);
    for (const int64_t in_cpu : {0, 1000}) {
      Config other = param_on_nvme(config);
      other.offload.param.max_in_cpu = in_cpu;
      EXPECT_EQ(train_with_access(other, external), expected) << external << " " << in_cpu;
    }
  }
}

TEST(OffloadParam, OnNvmeOnlyWhatIsUsedIsInMemoryAndStepsAllocateNothing) {
  Config config = param_on_nvme(gathering_config(3, DType::bf16));
  config.zero.prefetch_bucket_size = 500;
  run_engines({config}, [&](Engine& engine, Communicator& comm) {
    int64_t sharded = 0;
    for (const ParameterId id : parameters_of(engine)) {
      if (engine.is_sharded(id)) sharded += engine.numel(id) * 2;
    }
    EXPECT_LT(peak_bytes(engine, MemoryCategory::parameters), sharded / 8);
    int64_t held = 0;
    engine.states().visit_states(StateAccess::shape,
                                 [&](const StateInterval& part) { held += part.numel; });
    EXPECT_GE(live_bytes(engine, MemoryCategory::nvme), held * 2 - 1024);
    // Five buffers of one page: a chunk has at most 300 elements.
    EXPECT_EQ(peak_bytes(engine, MemoryCategory::pinned), 5 * 4096);
    const auto uses = [&] {
      std::vector<std::pair<int64_t, int64_t>> all;
      for (int i = 0; i < kMemoryCategories; ++i) {
        const auto category = static_cast<MemoryCategory>(i);
        all.emplace_back(live_bytes(engine, category), peak_bytes(engine, category));
      }
      return all;
    };
    toy_step(engine, comm, config, 0);
    const auto before = uses();
    for (int64_t step = 1; step < 4; ++step) toy_step(engine, comm, config, step);
    EXPECT_EQ(uses(), before);
  });
}

TEST(OffloadParam, MaxInCpuIsWhatStaysInMemoryAndThatNothingIsOnNvmeIsSaid) {
  const std::vector<ParameterSpec> specs = {{"a", {1000, 100}, "a", 0, true, ""},
                                            {"b", {1000, 100}, "b", 0, false, ""}};
  struct Row {
    int64_t in_cpu = 0;
    int64_t persistence = 100;
    int64_t memory = 0;  // elements
    int64_t file = 0;
    std::string said{};
  };
  const std::vector<Row> rows = {
      {.file = 200'000},
      {.in_cpu = 100'200, .memory = 100'000, .file = 100'000},
      {.in_cpu = 1'000'000'000,
       .memory = 200'000,
       .said = "no parameter is on NVMe: all of each rank's fit into the 1000000000 elements of "
               "/zero_optimization/offload_param/max_in_cpu"},
      {.persistence = 1 << 30,
       .said = "no parameter is on NVMe: none has more than the 1073741824 elements"}};
  for (const Row& row : rows) {
    Config config = param_on_nvme(base_config(3));
    config.zero.param_persistence_threshold = row.persistence;
    config.offload.sub_group_size = 100'000;
    config.offload.param.max_in_cpu = row.in_cpu;
    ::testing::internal::CaptureStderr();
    run_engines({config, 1, {}, specs}, [&](Engine& engine, Communicator&) {
      const std::string said = ::testing::internal::GetCapturedStderr();
      EXPECT_THAT(said, HasSubstr(row.said));
      EXPECT_EQ(said.find("no parameter is on NVMe") != std::string::npos, !row.said.empty());
      const int64_t buffers = row.file > 0 ? 5 * 200'704 : 0;
      EXPECT_NEAR(live_bytes(engine, MemoryCategory::pinned), buffers + row.memory * 2, 8192);
      EXPECT_NEAR(live_bytes(engine, MemoryCategory::nvme), row.file * 2, 8192);
    });
  }
}

// Behind the engine's back: a bit in each block of files without a name in the build's folder.
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
    EXPECT_ERROR_OF(IoError, engine.gather(engine.module_id("h.1")),
                    "parameters of rank 0: the 4096 bytes at offset ",
                    "are not what was written there");
  });
}

// Peers cannot look into a rank's file, so gathers are collectives: a difference is an error that
// names both sides, not a wait.
TEST(OffloadParam, RanksThatGatherDifferentModulesAreToldSo) {
  run_engines({param_on_nvme(base_config(3))}, [](Engine& engine, Communicator& comm) {
    EXPECT_THAT(error_of<CommError>(
                    [&] { engine.gather(engine.module_id(comm.rank() == 0 ? "h.0" : "h.1")); }),
                HasAll("h.0.weight", "h.1"));
  });
}

}  // namespace
}  // namespace zerorun::testing::offload
