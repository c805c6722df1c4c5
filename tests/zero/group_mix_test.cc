// Drawn mixtures of everything that groups of ranks go together with give the bits of plain
// sharding.

#include "tests/zero/toy_run.h"

namespace zerorun::testing::group_mix {
namespace {

struct Mixture {
  Config config;
  int ranks = 4;
  int ranks_per_host = 4;
};

class Draws {
 public:
  explicit Draws(unsigned seed) : random_(seed) {}
  template <typename T>
  T one_of(std::initializer_list<T> values) {
    return *(values.begin() + static_cast<int64_t>(random_() % values.size()));
  }
  Mixture mixture();

 private:
  std::mt19937 random_;
};

Mixture Draws::mixture() {
  Mixture drawn;
  Config& config = drawn.config;
  const int stage = one_of({1, 2, 3, 3});
  config = toy_config(stage, one_of({DType::fp32, DType::bf16, DType::fp16}));
  config.batch.accumulation_steps = one_of<int64_t>({1, 3});
  config.optimizer.type =
      one_of<std::string>({"AdamW", "Lamb", "Muon", "AdamW8bit", "Adagrad", "SGD"});
  config.zero.reduce_bucket_size = one_of<int64_t>({300, 1000, 100'000});
  config.zero.overlap_comm = one_of({true, false});
  config.zero.max_reuse_distance = one_of<int64_t>({0, 1'000'000});
  config.zero.param_persistence_threshold = one_of<int64_t>({0, 100});
  config.zero.prefetch_bucket_size = one_of<int64_t>({0, 10'000});
  config.share_parameters = one_of({true, false});
  drawn.ranks = one_of({4, 8});
  drawn.ranks_per_host = one_of({2, 4});
  if (drawn.ranks_per_host == drawn.ranks) drawn.ranks_per_host = 2;
  config.zero.shard_group_size = one_of<int64_t>({0, 0, 2, 4, kRanksOfHost});
  if (stage == 3) {
    config.zero.hpz_partition_size = one_of<int64_t>({1, 2, kRanksOfHost});
    if (config.zero.shard_group_size == 2) config.zero.hpz_partition_size = 1;
    config.offload.param.device = one_of({OffloadDevice::none, OffloadDevice::cpu});
  }
  auto& states = config.offload.optimizer;
  states.device = one_of({OffloadDevice::none, OffloadDevice::cpu, OffloadDevice::nvme});
  if (config.offload.param.device != OffloadDevice::none) states.device = OffloadDevice::cpu;
  states.nvme_path = test_paths::build();
  if (config.offload.param.device == OffloadDevice::none) states.ratio = one_of({1.0, 0.5});
  return drawn;
}

// A gradient that is not finite on one rank only in one step of fp16.
ToyOutcome train(const Config& config, int ranks, const HostOf& host_of) {
  const ToyJob job{
      .config = config, .ranks = ranks, .host_of = host_of, .limit = std::chrono::seconds(60)};
  return train_by(job, 4, [&](Engine& engine, Communicator& comm, int64_t step) {
    const bool overflow =
        config.precision.param_dtype == DType::fp16 && step == 1 && comm.rank() == ranks - 1;
    return toy_step(engine, comm, config, step, overflow);
  });
}

std::string described(const Mixture& drawn) {
  const Config& config = drawn.config;
  return fmt::format(
      "stage {} of {} ranks, {} per host, {}, {}, groups of {}, hpZ of {}, states {} ratio "
      "{}, parameters {}, {} micro-steps",
      config.zero.stage, drawn.ranks, drawn.ranks_per_host, name_of(config.precision.param_dtype),
      config.optimizer.type, config.zero.shard_group_size, config.zero.hpz_partition_size,
      static_cast<int>(config.offload.optimizer.device), config.offload.optimizer.ratio,
      static_cast<int>(config.offload.param.device), config.batch.accumulation_steps);
}

TEST(GroupMixTest, AnyMixtureGivesTheBitsOfPlainSharding) {
  Draws draws(7);
  std::map<std::tuple<int, DType, std::string, int64_t>, ToyOutcome> plain;
  const int count = std::getenv("ZERORUN_MATRIX") != nullptr ? 96 : 12;
  for (int i = 0; i < count; ++i) {
    const Mixture drawn = draws.mixture();
    const Config& config = drawn.config;
    const std::tuple key(drawn.ranks, config.precision.param_dtype, config.optimizer.type,
                         config.batch.accumulation_steps);
    if (!plain.contains(key)) {
      Config alone = toy_config(2, config.precision.param_dtype);
      alone.optimizer.type = config.optimizer.type;
      alone.batch = config.batch;
      plain[key] = train(alone, drawn.ranks, {});
    }
    EXPECT_EQ(train(config, drawn.ranks, hosts_of(drawn.ranks_per_host)), plain[key])
        << described(drawn);
  }
}

}  // namespace
}  // namespace zerorun::testing::group_mix
