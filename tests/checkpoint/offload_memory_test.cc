// Saving and loading states that rest in a file takes the memory that they pass through, not
// theirs.
#include <sys/resource.h>

#include "tests/checkpoint/toy_job.h"

namespace zerorun {
namespace {

namespace fs = std::filesystem;

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
  Config config = testing::job_config(3, DType::bf16, OffloadDevice::nvme);
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
}  // namespace zerorun
