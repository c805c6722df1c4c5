#include "tests/checkpoint/toy_job.h"

namespace zerorun::testing::optimizer_resume {
namespace {

namespace fs = std::filesystem;

struct Rule {
  std::string type;
  bool in_16_bits = false;
};

std::unique_ptr<Engine> make_engine(const Rule& rule, int stage, Device& device, Communicator& comm,
                                    OffloadDevice home = OffloadDevice::none) {
  Config config = job_config(stage, DType::bf16, home);
  config.precision.master_is_param = rule.in_16_bits;
  if (rule.in_16_bits && rule.type != "AdamW8bit") config.precision.state_dtype = DType::bf16;
  config.optimizer.type = rule.type;
  config.optimizer.momentum = 0.9;
  std::vector<ParameterSpec> specs = ToyModel::specs();
  for (ParameterSpec& spec : specs) spec.use_muon = spec.trainable && spec.shape.size() == 2;
  return testing::make_engine(config, device, comm, specs);
}

// The same gradients on every rank, so that ranks may become more or fewer.
void train(Engine& engine, int steps) {
  for (int i = 0; i < steps; ++i) {
    ToyModel::micro_step(engine, 0, 0, engine.states().progress().step_count);
    engine.step();
  }
}

class OptimizerResume : public ::testing::TestWithParam<Rule> {};

// Wherever the states may be at a stage.
OffloadDevice home_of(int stage, int number) {
  constexpr std::array kHomes = {OffloadDevice::none, OffloadDevice::cpu, OffloadDevice::nvme};
  return stage == 0 ? OffloadDevice::none : kHomes[static_cast<size_t>(number) % kHomes.size()];
}

// Two ranks save; one, two and four ranks, at other stages and with the states elsewhere, go on
// with the same bits, each from what the one before has loaded and saved again.
TEST_P(OptimizerResume, ContinuesWithTheSameBits) {
  for (int stage = 0; stage <= 3; ++stage) {
    const TemporaryDirectory directory;
    std::pair<uint64_t, uint64_t> expected;  // hashes
    run_ranks(2, [&](Communicator& comm) {
      const auto device = make_cpu_device();
      const auto engine = make_engine(GetParam(), stage, *device, comm, home_of(stage, stage));
      const uint64_t fresh = engine->states().parameter_hash();
      train(*engine, 3);
      engine->groups()[1].beta1 = 0.25;
      save_checkpoint(engine->states(), comm, {.directory = directory.string()});
      const uint64_t hash = engine->states().parameter_hash();
      EXPECT_NE(hash, fresh);
      train(*engine, 2);
      const uint64_t last = engine->states().parameter_hash();
      if (comm.rank() == 0) expected = {hash, last};
    });
    for (const int ranks : {1, 2, 4}) {
      run_ranks(ranks, [&](Communicator& comm) {
        const auto device = make_cpu_device();
        const int other = (stage + ranks) % 4;
        const auto engine = make_engine(GetParam(), other, *device, comm, home_of(other, ranks));
        EXPECT_EQ(load_checkpoint(engine->states(), comm, directory.string()).step, 3);
        EXPECT_EQ(engine->groups()[1].beta1, 0.25);
        EXPECT_EQ(engine->groups()[0].beta1, std::nullopt);
        EXPECT_EQ(engine->states().parameter_hash(), expected.first) << ranks;
        save_checkpoint(engine->states(), comm, {.directory = directory.string()});
        train(*engine, 2);
        EXPECT_EQ(engine->states().parameter_hash(), expected.second) << ranks;
      });
    }
  }
}

// All that this rank holds.
std::string bytes_of(Engine& engine) {
  std::string all;
  engine.states().visit_states(StateAccess::read, [&](const StateInterval& interval) {
    std::vector<TensorView> views = interval.states;
    views.insert(views.end(), {interval.param, interval.master});
    for (const TensorView& view : views) {
      all.append(reinterpret_cast<const char*>(view.data), view.nbytes());
    }
  });
  return fmt::format("{} {} {}", engine.states().progress().step_count, engine.groups()[0].lr, all);
}

// Engines before their first step, and after one.
TEST_P(OptimizerResume, FailedLoadChangesNothingOnAnyRank) {
  for (int stage = 0; stage <= 3; ++stage) {
    const TemporaryDirectory directory;
    run_ranks(2, [&](Communicator& comm) {
      const auto device = make_cpu_device();
      const auto saving = make_engine(GetParam(), stage, *device, comm);
      train(*saving, 3);
      save_checkpoint(saving->states(), comm, {.directory = directory.string()});
      const uint64_t saved = saving->states().parameter_hash();
      const std::string saved_bytes = bytes_of(*saving);
      for (int number = 0; number < (stage == 0 ? 1 : 3); ++number) {
        const OffloadDevice home = home_of(stage, number);
        for (const int steps : {0, 1}) {
          const auto engine = make_engine(GetParam(), stage, *device, comm, home);
          train(*engine, steps);
          const std::string before = bytes_of(*engine);
          const uint64_t hash = engine->states().parameter_hash();
          if (comm.rank() == 0) flip_last_bit(directory);
          EXPECT_ERROR_OF(CheckpointError,
                          load_checkpoint(engine->states(), comm, directory.string()), "damaged");
          EXPECT_TRUE(bytes_of(*engine) == before) << "stage " << stage << ", steps " << steps;
          EXPECT_EQ(engine->states().parameter_hash(), hash);
          if (comm.rank() == 0) flip_last_bit(directory);
          load_checkpoint(engine->states(), comm, directory.string());
          EXPECT_EQ(engine->states().parameter_hash(), saved);
          if (home != OffloadDevice::none) continue;  // in another order
          EXPECT_TRUE(bytes_of(*engine) == saved_bytes);
        }
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, OptimizerResume,
                         ::testing::Values(Rule{"AdamW"}, Rule{"AdamW8bit"}, Rule{"SGD"},
                                           Rule{"Adagrad"}, Rule{"Lion"}, Rule{"Lamb"},
                                           Rule{"Muon"}, Rule{"AdamW", true}, Rule{"Lamb", true},
                                           Rule{"Muon", true}, Rule{"AdamW8bit", true}),
                         [](const auto& rule) {
                           return rule.param.type + (rule.param.in_16_bits ? "_16_bit" : "");
                         });

// States that rest in a file are saved and loaded through less memory than they would take.
constexpr int64_t kWidth = 1024;
constexpr int kLayers = 20;
constexpr int64_t kParameterNbytes = kLayers * kWidth * kWidth * 2;

// Sanitizers keep what was freed, and notes about every byte.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

int64_t peak_rss() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

std::unique_ptr<Engine> make_engine(Device& device, Communicator& comm, float value) {
  Config config = job_config(3, DType::bf16, OffloadDevice::nvme);
  config.zero.reduce_bucket_size = Config().zero.reduce_bucket_size;
  config.offload.param.device = OffloadDevice::nvme;
  config.offload.param.max_in_cpu = 0;
  config.offload.sub_group_size = 1 << 18;
  config.offload.aio = {};
  std::vector<ParameterSpec> specs;
  for (int i = 0; i < kLayers; ++i) {
    const std::string name = "h." + std::to_string(i);
    specs.push_back({name, {kWidth, kWidth}, name, 0, i != 3, ""});
  }
  auto engine = Engine::create(config, device, comm, specs, {ParameterGroup{}});
  engine->initialize_parameters([value](ParameterId id, int64_t, std::span<float> out) {
    std::fill(out.begin(), out.end(), value + static_cast<float>(id));
  });
  return engine;
}

// Mappings of files without a name in the folder of the states.
bool maps_states() {
  const std::string folder = fs::canonical(test_paths::build()).string();
  return read_file("/proc/self/maps").find(folder + "/#") != std::string::npos;
}

TEST(OffloadMemory, SavingAndLoadingStaysWithinTheStagingBuffers) {
  // On the disk of the build: memory is what is measured.
  const fs::path folder = fs::path(test_paths::build()) / ("memory-" + std::to_string(::getpid()));
  const auto device = make_cpu_device();
  const auto comm = make_communicator({});
  const auto saving = make_engine(*device, *comm, 1.0F);
  const uint64_t hash = saving->states().parameter_hash();
  const auto loading = make_engine(*device, *comm, 2.0F);
  EXPECT_NE(loading->states().parameter_hash(), hash);
  const int64_t before = peak_rss();
  const int64_t pinned = device->memory_use(MemoryCategory::pinned).peak_bytes;
  save_checkpoint(saving->states(), *comm, {.directory = folder.string()});
  load_checkpoint(loading->states(), *comm, folder.string());
  EXPECT_EQ(loading->states().parameter_hash(), hash);
  EXPECT_EQ(device->memory_use(MemoryCategory::pinned).peak_bytes, pinned);
  if (!kSanitized) {
    EXPECT_LT(peak_rss() - before, kParameterNbytes / 2);
  }
  EXPECT_FALSE(maps_states());
  saving->states().state_intervals();
  EXPECT_TRUE(maps_states());
  fs::remove_all(folder);
}

}  // namespace
}  // namespace zerorun::testing::optimizer_resume
