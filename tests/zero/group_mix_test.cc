// Drawn mixtures of what may not change a bit, with every rule, give the bits of plain sharding.

#include "tests/zero/toy_run.h"

namespace zerorun::testing::group_mix {
namespace {

struct Mixture {
  Config config;
  int ranks = 1;
  int ranks_per_host = 1;
  std::string choices{};  // by setting, which of its values
};

// Draws of each setting the values that it had least often.
class Draws {
 public:
  explicit Draws(unsigned seed) : random_(seed) {}
  Mixture on_one_host(const Rule& rule);
  Mixture on_hosts();

 private:
  template <typename Values>
  auto one_of(const char* setting, const Values& values) {
    std::vector<int>& counts = counts_[setting];
    counts.resize(values.size());
    const int least = *std::min_element(counts.begin(), counts.end());
    size_t chosen = random_() % counts.size();
    while (counts[chosen] > least) chosen = random_() % counts.size();
    ++counts[chosen];
    choices_ += fmt::format("{} {}, ", setting, chosen);
    return values.begin()[chosen];
  }
  template <typename T>
  T one_of(const char* setting, std::initializer_list<T> values) {
    return one_of<std::initializer_list<T>>(setting, values);
  }

  Mixture mixture(const Rule& rule, int stage, int ranks, int ranks_per_host);
  void draw_groups(Mixture& drawn);
  void draw_dtypes(Mixture& drawn, const Rule& rule);
  void draw_homes(Config& config);

  std::mt19937 random_;
  std::map<std::string, std::vector<int>> counts_;
  std::string choices_;
};

void Draws::draw_groups(Mixture& drawn) {
  ZeroConfig& zero = drawn.config.zero;
  const int ranks = drawn.ranks;
  const bool is_even = ranks % drawn.ranks_per_host == 0;
  if (zero.stage > 0 && ranks > 1) {
    zero.shard_group_size = one_of<int64_t>("shard group", {0, 0, 1, 2, 4, kRanksOfHost});
    const bool divides = zero.shard_group_size > 0 && ranks % zero.shard_group_size == 0;
    if (zero.shard_group_size == kRanksOfHost ? !is_even : !divides) zero.shard_group_size = 0;
  }
  if (zero.stage == 3 && drawn.ranks_per_host < ranks && ranks % 4 == 0 &&
      zero.shard_group_size % 4 == 0) {
    zero.hpz_partition_size = one_of<int64_t>("hpZ", {2, 4, kRanksOfHost});
    if (zero.hpz_partition_size == kRanksOfHost && !is_even) zero.hpz_partition_size = 2;
  }
}

void Draws::draw_dtypes(Mixture& drawn, const Rule& rule) {
  Config& config = drawn.config;
  PrecisionConfig& precision = config.precision;
  const bool any = rule.state_dtype == DType::fp32;
  precision.param_dtype = any ? one_of("dtype", {DType::fp32, DType::bf16, DType::fp16})
                              : one_of("dtype", {DType::fp32, DType::bf16});
  rule.set(config);
  config.batch.accumulation_steps = one_of<int64_t>("micro-steps", {1, 3});
  const std::optional<DType> own;
  if (drawn.ranks_per_host == drawn.ranks &&
      config.zero.shard_group_size == 0) {  // others round what they send
    precision.communication_dtype =
        one_of<std::optional<DType>>("wire", {own, own, DType::fp32, DType::bf16});
  }
  precision.grad_accum_dtype =
      one_of<std::optional<DType>>("sums", {own, own, DType::fp32, DType::bf16});
}

// Where states and parameters rest, in chunks of a few hundred elements.
void Draws::draw_homes(Config& config) {
  const int stage = config.zero.stage;
  if (stage == 0) return;
  const auto device = one_of(
      "states", {OffloadDevice::none, OffloadDevice::cpu, OffloadDevice::nvme, OffloadDevice::cpu});
  if (device != OffloadDevice::none) {
    config = offloaded(config, one_of("ratio", {1.0, 0.4, 0.0}), device);
  }
  if (stage < 3) return;
  const auto home = one_of("parameters", {OffloadDevice::none, OffloadDevice::cpu,
                                          OffloadDevice::nvme, OffloadDevice::nvme});
  if (home == OffloadDevice::cpu) config.offload.param.device = home;
  if (home != OffloadDevice::nvme) return;
  config = param_on_nvme(config);
  config.offload.param.max_in_cpu = one_of<int64_t>("in memory", {0, 1000});
  config.offload.param.buffer_size = one_of<int64_t>("buffer", {1, 600, 100'000'000});
}

Mixture Draws::mixture(const Rule& rule, int stage, int ranks, int ranks_per_host) {
  Mixture drawn{base_config(stage), ranks, ranks_per_host};
  Config& config = drawn.config;
  config.precision.loss_scaler.initial_scale_power = 10;  // sums stay finite
  config.zero.reduce_bucket_size = one_of<int64_t>("bucket", {1, 300, 1000, 1 << 20});
  config.zero.overlap_comm = one_of("overlap", {true, false});
  config.zero.max_reuse_distance = one_of<int64_t>("reuse", {0, 1'000'000});
  config.zero.param_persistence_threshold = one_of<int64_t>("persistence", {0, 100, 600, 1 << 20});
  config.zero.prefetch_bucket_size = one_of<int64_t>("prefetch", {0, 10'000});
  config.zero.max_live_parameters = one_of<int64_t>("live", {1, 4000, 1 << 30});
  config.share_parameters = one_of("share", {true, false});
  draw_groups(drawn);
  draw_dtypes(drawn, rule);
  draw_homes(config);
  drawn.choices = std::exchange(choices_, {});
  return drawn;
}

Mixture Draws::on_one_host(const Rule& rule) {
  const int ranks = one_of("ranks", {1, 2, 3, 4});
  return mixture(rule, one_of("stage", {0, 1, 2, 3, 3}), ranks, ranks);
}

Mixture Draws::on_hosts() {
  const int stage = one_of("stage", {1, 2, 3, 3, 3});
  const int ranks = one_of("ranks", {4, 4, 6, 8});
  const int ranks_per_host = ranks == 8 ? one_of("of 8", {2, 4}) : one_of("of fewer", {1, 2, 2, 3});
  return mixture(one_of("rule", every_rule()), stage, ranks, ranks_per_host);
}

// A gradient that is not finite on one rank only in one step.
ToyOutcome train(const Config& config, int ranks, const HostOf& host_of) {
  const ToyJob job{.config = config, .ranks = ranks, .host_of = host_of, .limit = 60s};
  return train_by(job, 4, [&](Engine& engine, Communicator& comm, int64_t step) {
    return toy_step(engine, comm, config, step, step == 1 && comm.rank() == ranks - 1);
  });
}

void expect_the_bits_of_plain_sharding(const Mixture& drawn) {
  SCOPED_TRACE(drawn.choices + drawn.config.optimizer.type);
  Config plain = toy_config(2);
  plain.batch = drawn.config.batch;
  plain.precision = drawn.config.precision;
  plain.optimizer = drawn.config.optimizer;
  plain.gradient_clipping = drawn.config.gradient_clipping;
  const ToyOutcome expected = train(plain, drawn.ranks, {});
  EXPECT_EQ(expected.skipped, 1);
  EXPECT_EQ(train(drawn.config, drawn.ranks, hosts_of(drawn.ranks_per_host)), expected);
}

int mixtures(int daily) { return std::getenv("ZERORUN_MATRIX") != nullptr ? 8 * daily : daily; }

class GroupMixTest : public ::testing::TestWithParam<Rule> {};

TEST_P(GroupMixTest, AnyMixtureGivesTheBitsOfPlainSharding) {
  const std::string name = GetParam().name();
  Draws draws(static_cast<unsigned>(std::accumulate(name.begin(), name.end(), 0)));
  for (int i = 0; i < mixtures(20); ++i) {
    expect_the_bits_of_plain_sharding(draws.on_one_host(GetParam()));
  }
}

TEST(GroupMixOfHosts, AnyMixtureGivesTheBitsOfPlainSharding) {
  Draws draws(7);
  for (int i = 0; i < mixtures(12); ++i) expect_the_bits_of_plain_sharding(draws.on_hosts());
}

INSTANTIATE_TEST_SUITE_P(Rules, GroupMixTest, ::testing::ValuesIn(every_rule()), name_of_rule);

}  // namespace
}  // namespace zerorun::testing::group_mix
