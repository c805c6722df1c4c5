// Parameters and gradients that travel between hosts in few bits.

#include "tests/zero/toy_run.h"
#include "zero/gradients/quantized_reduction.h"

namespace zerorun::testing::quantized_traffic {
namespace {

Config config_of(int stage, DType dtype = DType::bf16) {
  Config config = toy_config(stage, dtype);
  config.zero.max_reuse_distance = 0;
  return config;
}

// Two hosts of two ranks.
ToyOutcome train_on_pairs(const Config& config, int64_t overflow_at = -1) {
  return toy_train({config, 4, hosts_of(2)}, 4, overflow_at);
}

// The most by which a value may be off: half a step of the largest magnitude among its neighbours;
// with 4 bits a step, where that has the other sign.
double bound(std::span<const float> values, size_t index, int bits) {
  const size_t group = bits == 4 ? 32 : 256;
  const size_t begin = index / group * group;
  double largest = 0;
  for (size_t i = begin; i < std::min(values.size(), begin + group); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(values[i])));
  }
  return bits == 4 ? 1.02 * largest / 8 : 0.5001 * largest / 127;
}

std::vector<float> normals(int64_t numel, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(numel));
  for (float& value : values) value = normal(random);
  return values;
}

TEST(QuantizedTrafficTest, AllRanksComputeWithTheSameNearbyParameters) {
  for (const int64_t secondary : {1, 2}) {
    Config config = config_of(3, DType::fp32);
    config.zero.quantized_weights = true;
    config.zero.hpz_partition_size = secondary;
    config.zero.param_persistence_threshold = 0;
    const std::vector<ParameterSpec> specs = {{"a", {16, 512}, "m", 0, true, ""},
                                              {"bias", {512}, "m", 0, true, ""}};
    const std::vector<float> expected = normals(16 * 512, 7);
    std::mutex mutex;
    std::vector<std::vector<float>> seen;
    run_engines({config, 4, hosts_of(2), specs}, [&](Engine& engine, Communicator&) {
      engine.initialize_parameters([&](ParameterId, int64_t begin, std::span<float> out) {
        std::copy_n(expected.begin() + begin, out.size(), out.begin());
      });
      for (int use = 0; use < 2; ++use) {
        engine.gather(0);
        const std::lock_guard lock(mutex);
        seen.push_back(ToyModel::floats_of(engine.parameter(0)));
        // Vectors travel as they are.
        EXPECT_EQ(ToyModel::floats_of(engine.parameter(1)),
                  std::vector<float>(expected.begin(), expected.begin() + 512));
        engine.release(0);
      }
    });
    for (const std::vector<float>& values : seen) EXPECT_EQ(values, seen.front());
    EXPECT_NE(seen.front(), expected);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(seen.front()[i], expected[i], bound(expected, i, 8)) << i;
    }
  }
}

constexpr int64_t kElements = 4096;

// The gradient of a rank, of the elements of a bucket, and zeros in its padding.
std::vector<float> gradient_of(int rank, int64_t numel) {
  std::vector<float> values = normals(kElements, static_cast<unsigned>(rank) + 1);
  values.resize(static_cast<size_t>(numel));
  return values;
}

struct Reduced {
  std::vector<float> mean;     // over the repetitions
  std::vector<double> exact;   // in float64
  std::vector<double> bounds;  // of one repetition
};

// Reduces the same gradient several times; the slices of all ranks, side by side.
Reduced reduce(const Config& config, int world_size, int ranks_of_host, int times) {
  const std::vector<ParameterSpec> specs = {{"a", {16, kElements / 16}, "m", 0, true, ""}};
  Reduced result;
  std::mutex mutex;
  const ToyJob job{config, world_size, hosts_of(ranks_of_host)};
  run_devices(job, [&](Device& device, Communicator& comm) {
    const std::vector<Optimizer> rules = make_optimizers(config.optimizer, config.precision);
    const EngineContext context = make_context(config, specs, rules.front(), device, comm, {});
    const std::vector<int64_t> numels = {kElements};
    const std::vector<ModuleId> modules = {0};
    std::vector<Bucket> buckets = make_buckets(context.sharding, numels, modules);
    const Bucket& bucket = buckets.front();
    QuantizedReduction reduction(context, buckets);
    const int64_t numel = bucket.layout.padded_numel();
    const int64_t shard = bucket.layout.shard_numel;
    std::vector<float> own = gradient_of(comm.rank(), numel);
    std::vector<float> sum(static_cast<size_t>(shard), 0.0F);
    for (int time = 0; time < times; ++time) {
      const Output output = time == 0 ? Output::overwrite : Output::accumulate;
      reduction
          .run(bucket, view_of(std::span(own)), view_of(std::span(sum)), output,
               device.inline_stream())
          .synchronize();
      reduction.end_batch(device.inline_stream());
    }
    const std::lock_guard lock(mutex);
    result.mean.resize(static_cast<size_t>(numel));
    for (size_t i = 0; i < sum.size(); ++i) {
      result.mean[static_cast<size_t>(comm.rank() * shard) + i] =
          sum[i] / static_cast<float>(times);
    }
  });
  result.exact.resize(result.mean.size());
  result.bounds.resize(result.mean.size());
  for (int first = 0; first < world_size; first += ranks_of_host) {
    std::vector<float> of_host(result.mean.size());
    for (int rank = first; rank < first + ranks_of_host; ++rank) {
      const std::vector<float> own = gradient_of(rank, static_cast<int64_t>(of_host.size()));
      for (size_t i = 0; i < own.size(); ++i) of_host[i] += own[i];
    }
    const size_t shard = of_host.size() / static_cast<size_t>(world_size);
    for (size_t i = 0; i < of_host.size(); ++i) {
      result.exact[i] += of_host[i];
      const size_t owner = i / shard / static_cast<size_t>(ranks_of_host);
      if (owner == static_cast<size_t>(first / ranks_of_host)) continue;  // its own host's
      result.bounds[i] += bound(of_host, i, static_cast<int>(config.zero.quantized_gradient_bits));
    }
  }
  return result;
}

double root_mean_square_error(const Reduced& reduced) {
  double sum = 0;
  for (size_t i = 0; i < reduced.mean.size(); ++i) {
    sum += std::pow(reduced.mean[i] - reduced.exact[i], 2);
  }
  return std::sqrt(sum / static_cast<double>(reduced.mean.size()));
}

TEST(QuantizedTrafficTest, AGradientIsRoundedOnceForEachOtherHost) {
  Config config = config_of(2, DType::fp32);
  config.zero.quantized_gradients = true;
  for (const int bits : {4, 8}) {
    config.zero.quantized_gradient_bits = bits;
    for (const auto& [ranks, host] : {std::pair(4, 2), std::pair(8, 4), std::pair(3, 1)}) {
      const Reduced reduced = reduce(config, ranks, host, 1);
      for (size_t i = 0; i < reduced.mean.size(); ++i) {
        EXPECT_NEAR(reduced.mean[i], reduced.exact[i], reduced.bounds[i] + 1e-5)
            << i << " of " << ranks << " ranks, " << bits << " bits";
      }
      EXPECT_GT(root_mean_square_error(reduced), bits == 4 ? 0.01 : 0.001);
    }
  }
}

TEST(QuantizedTrafficTest, WhatIsLostComesWithTheNextGradients) {
  for (const int bits : {4, 8}) {
    Config config = config_of(2, DType::fp32);
    config.zero.quantized_gradients = true;
    config.zero.quantized_gradient_bits = bits;
    constexpr int kTimes = 24;
    const double without = root_mean_square_error(reduce(config, 4, 2, kTimes));
    config.zero.loco = LocoConfig{.err_beta = 0.2, .reset_T = 1000};
    EXPECT_LT(root_mean_square_error(reduce(config, 4, 2, kTimes)), without / 2) << bits;
    config.zero.loco->reset_T = 1;  // forgotten at once
    EXPECT_EQ(root_mean_square_error(reduce(config, 4, 2, kTimes)), without) << bits;
  }
}

TEST(QuantizedTrafficTest, TrainingStaysCloseAndHasTheSameBitsInEveryRun) {
  for (const auto& [stage, bits] : {std::pair(1, 4), std::pair(3, 4), std::pair(3, 8)}) {
    Config config = config_of(stage);
    const ToyOutcome plain = train_on_pairs(config);
    config.zero.quantized_gradients = true;
    config.zero.quantized_gradient_bits = bits;
    config.zero.quantized_weights = true;
    config.zero.loco = LocoConfig{};
    const ToyOutcome quantized = train_on_pairs(config);
    EXPECT_NE(quantized.hash, plain.hash);
    for (size_t i = 0; i < plain.norms.size(); ++i) {
      EXPECT_NEAR(quantized.norms[i] / plain.norms[i], 1, bits == 4 ? 0.15 : 0.02) << "step " << i;
    }
    config.zero.overlap_comm = true;
    if (stage == 3) config.zero.hpz_partition_size = 2;
    const ToyOutcome again = train_on_pairs(config);
    EXPECT_EQ(again.hash, quantized.hash) << stage;
    EXPECT_EQ(again.norms, quantized.norms) << stage;
  }
}

TEST(QuantizedTrafficTest, GradientsThatAreNotFiniteSkipTheStepEverywhere) {
  Config config = config_of(2, DType::fp16);
  config.zero.quantized_gradients = true;
  config.zero.loco = LocoConfig{};
  const ToyOutcome outcome = train_on_pairs(config, 1);
  EXPECT_EQ(outcome.skipped, 1);
  EXPECT_TRUE(std::isfinite(outcome.norms.back()));
}

TEST(QuantizedTrafficTest, OneHostHasNothingToSave) {
  for (const auto& [stage, ranks] : {std::pair(1, 4), std::pair(2, 1), std::pair(3, 4)}) {
    Config config = config_of(stage);
    const ToyOutcome plain = toy_train({config, ranks});
    config.zero.quantized_gradients = config.zero.quantized_weights = true;
    if (stage == 3) config.zero.hpz_partition_size = 3;  // of another cluster
    EXPECT_EQ(toy_train({config, ranks}).hash, plain.hash) << stage;
  }
}

// Bytes that two hosts of two ranks exchange in a step, by what the collectives say.
std::map<Collective, int64_t> bytes_between_hosts(const Config& config) {
  const std::vector<ParameterSpec> specs = {{"a", {64, 1024}, "m", 0, true, ""},
                                            {"b", {32, 1024}, "n", 0, false, ""}};
  return result_of({config, 4, hosts_of(2), specs}, [&](Engine& engine, Communicator& comm) {
    const Traffic traffic = traffic_of(comm, [&] {
      for (const char* module : {"m", "n", "n", "m"}) visit(engine, module);
      give_gradient(engine, 0, 0.5F);
      engine.end_micro_step();
      engine.step();
      engine.hooks().finish_updates();
    });
    std::map<Collective, int64_t> bytes;
    for (const auto& [group, by_op] : traffic) {
      // Calls within a host cross nothing; an exchange of one rank of each host is done by both.
      if (group.starts_with("host ") || group.starts_with("hpZ")) continue;
      for (const auto& [op, sum] : by_op) bytes[op] += op == Collective::all_to_all ? 2 * sum : sum;
    }
    return bytes;
  });
}

TEST(QuantizedTrafficTest, FewerBytesCross) {
  Config config = config_of(3, DType::fp32);
  config.zero.prefetch_bucket_size = 0;
  const int64_t trained = int64_t{4} * 64 * 1024;  // bytes in fp32
  const int64_t frozen = int64_t{4} * 32 * 1024;
  std::map<Collective, int64_t> plain = bytes_between_hosts(config);
  EXPECT_EQ(plain[Collective::all_gather], 2 * (trained + frozen));
  EXPECT_EQ(plain[Collective::reduce_scatter], trained);
  config.zero.quantized_nontrainable_weights = true;
  EXPECT_EQ(bytes_between_hosts(config)[Collective::all_gather],
            2 * (trained + frozen * 260 / 1024));
  config.zero.quantized_weights = config.zero.quantized_gradients = true;
  config.zero.loco = LocoConfig{};
  std::map<Collective, int64_t> fewer = bytes_between_hosts(config);
  EXPECT_GT(static_cast<double>(plain[Collective::all_gather]) /
                static_cast<double>(fewer[Collective::all_gather]),
            3.9);
  EXPECT_EQ(fewer[Collective::reduce_scatter], 0);
  EXPECT_GT(static_cast<double>(trained) / static_cast<double>(fewer[Collective::all_to_all]), 3.9);
  config.zero.quantized_gradient_bits = 4;
  const int64_t sent = bytes_between_hosts(config)[Collective::all_to_all];
  EXPECT_GT(static_cast<double>(trained) / static_cast<double>(sent), 7.1);
  config.zero.hpz_partition_size = 2;
  EXPECT_EQ(2 * bytes_between_hosts(config)[Collective::all_gather], fewer[Collective::all_gather]);
}

// Of 65536 trained elements; frozen parameters do not change.
TEST(QuantizedTrafficTest, UpdatedParametersCrossInHalfTheBytes) {
  for (const int stage : {1, 2}) {
    for (const auto& [dtype, most] : {std::pair(DType::fp32, 0.26), std::pair(DType::bf16, 0.51)}) {
      Config config = config_of(stage, dtype);
      const int64_t plain = bytes_between_hosts(config)[Collective::all_gather];
      EXPECT_EQ(plain, int64_t{64} * 1024 * static_cast<int64_t>(size_of(dtype)));
      config.zero.quantized_weights = true;
      const int64_t fewer = bytes_between_hosts(config)[Collective::all_gather];
      EXPECT_GT(fewer, 0);
      EXPECT_LT(static_cast<double>(fewer), most * static_cast<double>(plain)) << stage;
    }
  }
}

TEST(QuantizedTrafficTest, WhatCannotWorkIsAnError) {
  const auto expect_refused = [](const ZeroConfig& zero, const ToyJob& job, const char* text) {
    ToyJob own = job;
    own.config = config_of(zero.stage);
    own.config.zero = zero;
    EXPECT_THAT(refusal(own), HasSubstr(text));
  };
  const ToyJob pairs{.ranks = 4, .host_of = hosts_of(2)};
  expect_refused({.stage = 0, .quantized_weights = true}, pairs,
                 "zero_quantized_weights needs /zero_optimization/stage 1, 2 or 3, got 0");
  expect_refused({.stage = 2, .quantized_nontrainable_weights = true}, pairs, "stage 3, got 2");
  ZeroConfig gradients{.stage = 0, .quantized_gradients = true};
  expect_refused(gradients, pairs, "stage 1, 2 or 3, got 0");
  gradients.stage = 2;
  expect_refused(gradients, {.ranks = 3, .host_of = hosts_of(2)}, "hosts have from 1 to 2");
  expect_refused(gradients, {.ranks = 4, .host_of = hosts_of("abab")},
                 "not neighbours in rank order");
  gradients.shard_group_size = 4;
  expect_refused(gradients, {.ranks = 8, .host_of = hosts_of(2)}, "2 groups of 4 ranks");
}

}  // namespace
}  // namespace zerorun::testing::quantized_traffic
