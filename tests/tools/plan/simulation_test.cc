#include "tools/plan/simulation.h"

#include "checkpoint/files/layout.h"
#include "tests/checkpoint/temporary_directory.h"
#include "tests/harness.h"
#include "tools/plan/plan.h"
#include "zerorun/checkpoint.h"

namespace zerorun::testing::simulation {
namespace {

constexpr int kLayers = 4;

// Of which nothing stays after forward.
Config stage_3() {
  Config config;
  config.zero.stage = 3;
  config.zero.param_persistence_threshold = 0;
  config.zero.max_reuse_distance = 0;
  config.batch.accumulation_steps = 1;
  return config;
}

std::vector<ParameterSpec> layers() {
  std::vector<ParameterSpec> specs = {{"wte", {300, 32}, "embed", 0, true, ""}};
  for (int layer = 0; layer < kLayers; ++layer) {
    const std::string module = "h." + std::to_string(layer);
    specs.push_back({module + ".up", {32, 128}, module, 0, true, ""});
    specs.back().use_muon = true;
    specs.push_back({module + ".bias", {128}, module, 0, true, ""});
  }
  return specs;
}

std::string module_of(int number) {
  return number == 0 ? "embed" : "h." + std::to_string(number - 1);
}

// One step, of which each rank's collectives of buckets are counted: bytes and calls.
using Counts = std::map<Collective, std::pair<int64_t, int64_t>>;

void train(Engine& engine, const Config& config) {
  const auto gather = [&](int module) {
    engine.gather(engine.module_id(module_of(module)));
    engine.release(engine.module_id(module_of(module)));
  };
  for (int64_t micro = 0; micro < config.batch.accumulation_steps; ++micro) {
    for (int module = 0; module <= kLayers; ++module) gather(module);
    for (int module = kLayers; module >= 0; --module) gather(module);
    for (auto id = static_cast<ParameterId>(engine.parameters().size()); id-- > 0;) {
      engine.device().fill(engine.device().inline_stream(), engine.gradient(id).view, 0.5F);
      engine.grad_ready(id);
    }
    engine.end_micro_step();
  }
  engine.step();
  engine.hooks().finish_updates();  // that the next forward would wait for
}

Counts counted(const Config& config, int ranks, int ranks_of_host) {
  Counts counts;
  const auto body = [&](Communicator& comm) {
    const auto device = make_cpu_device();
    const auto engine = Engine::create(config, *device, comm, layers(), {ParameterGroup{}});
    engine->initialize_parameters([](ParameterId, int64_t, std::span<float> out) {
      std::fill(out.begin(), out.end(), 0.5F);
    });
    for (int step = 0; step < 2; ++step) train(*engine, config);  // learns the order of gathers
    std::mutex mutex;
    Counts own;
    Subscription observed = comm.observe([&](const CollectiveSpan& span) {
      const std::lock_guard lock(mutex);
      if (span.label.find("bucket") == std::string::npos) return;
      own[span.op].first += span.bytes;
      ++own[span.op].second;
    });
    train(*engine, config);
    observed.reset();
    if (comm.rank() == ranks - 1) counts = own;
  };
  run_ranks({.ranks = ranks, .host_of = hosts_of(ranks_of_host)}, body);
  return counts;
}

Counts planned(const Config& config, int ranks, int ranks_of_host) {
  const std::vector<ParameterSpec> specs = layers();
  const ShardedModel model(config, specs, ranks, /*computes_on_host=*/false);
  Counts counts;
  for (const StepCall& call : step_calls(model, ranks_of_host)) {
    counts[call.op].first += call.bytes;
    ++counts[call.op].second;
  }
  return counts;
}

TEST(SimulationTest, PlansTheCallsThatRanksMake) {
  for (const int host : {1, 2}) {  // the next test has the many
    const int ranks = 2 * host;
    for (int stage = 0; stage <= 3; ++stage) {
      Config config;
      config.zero.stage = stage;
      config.batch.accumulation_steps = 2;
      config.zero.reduce_bucket_size = 5000;
      config.zero.param_persistence_threshold = 200;
      config.zero.max_reuse_distance = 0;
      config.zero.overlap_comm = true;  // gathers ahead, but nothing that the step would drop
      const auto expect_planned = [&](const std::string& what) {
        EXPECT_EQ(planned(config, ranks, host), counted(config, ranks, host))
            << ranks << " ranks, stage " << stage << what;
      };
      expect_planned("");
      config.optimizer.type = "Muon";
      expect_planned(", Muon");
      config.optimizer.type = "AdamW";
      if (stage == 0 || ranks == 2) continue;
      config.zero.shard_group_size = host;
      expect_planned(", groups");
      config.zero.shard_group_size = 0;
      config.zero.quantized_weights = true;
      if (stage == 3) config.zero.hpz_partition_size = host;
      expect_planned(", 8 bits");
    }
  }
}

TEST(SimulationTest, PlansTheCallsOfSixtyFourRanks) {
  Config config = stage_3();
  config.zero.reduce_bucket_size = 5000;
  config.zero.param_persistence_threshold = 200;
  EXPECT_EQ(planned(config, 16, 4), counted(config, 16, 4));
  config.zero.hpz_partition_size = 8;
  EXPECT_EQ(planned(config, 64, 8), counted(config, 64, 8)) << "hpZ";
  config.zero.hpz_partition_size = 1;
  config.zero.stage = 2;
  config.zero.shard_group_size = 8;
  EXPECT_EQ(planned(config, 64, 8), counted(config, 64, 8)) << "groups";
}

TEST(SimulationTest, PlansTheManifestThatRanksSave) {
  const TemporaryDirectory directory;
  constexpr int kRanks = 16;
  Config config;
  config.zero.stage = 2;
  run_ranks(kRanks, [&](Communicator& comm) {
    const auto device = make_cpu_device();
    const auto engine =
        Engine::create(config, *device, comm, layers(), {ParameterGroup{}, ParameterGroup{}});
    save_checkpoint(engine->states(), comm, {.directory = directory.string(), .tag = "one"});
  });
  const auto saved = static_cast<double>(std::filesystem::file_size(
      std::filesystem::path(directory.string()) / "one" / kManifestName));
  const std::vector<ParameterSpec> specs = layers();
  const ShardedModel model(config, specs, kRanks, /*computes_on_host=*/true);
  EXPECT_NEAR(static_cast<double>(plan_manifest(model)), saved, 0.02 * saved);
}

TEST(SimulationTest, ACallCostsItsMessagesAndBytes) {
  SimulatedCluster cluster{.hosts = 4, .gpus = 2, .link = 1e9, .nvlink = 1e10};
  cluster.latency = 1e-3;
  StepCall call{.op = Collective::all_gather, .ranks = {8, 1}, .bytes = 8000};
  const CallCost ring = cost_of(call, cluster);
  EXPECT_EQ(ring.link_bytes, 7000);  // a ring leaves a host once
  EXPECT_EQ(ring.messages, 7);
  EXPECT_NEAR(ring.seconds, 7e-3 + 7e-6, 1e-9);
  call.op = Collective::all_reduce;
  call.ranks = {4, 2};  // one rank of each host, twice
  const CallCost replicas = cost_of(call, cluster);
  EXPECT_EQ(replicas.link_bytes, 2 * 2 * 6000);
  EXPECT_EQ(replicas.link_messages, 2 * 6);
  EXPECT_EQ(replicas.near_bytes, 0);
  call.op = Collective::all_to_all;
  call.ranks = {2, 1};
  const CallCost near = cost_of(call, cluster);
  EXPECT_EQ(near.link_bytes, 0);
  EXPECT_EQ(near.near_bytes, 4000);
}

// Groups of 3 on hosts of 4: the second one is on two hosts, and so is the third.
TEST(SimulationTest, AGroupThatBeginsOnOneHostAndEndsOnAnotherUsesTheLink) {
  const SimulatedCluster cluster{.hosts = 3, .gpus = 4, .link = 1e9, .nvlink = 1e10};
  StepCall call{.op = Collective::all_gather, .ranks = {3, 1}, .bytes = 3000};
  const CallCost ring = cost_of(call, cluster);
  EXPECT_EQ(ring.link_bytes, 2 * 2000);  // of the middle host, which two groups leave
  EXPECT_GT(ring.seconds, 2 * cluster.latency);
  call.op = Collective::all_to_all;
  EXPECT_EQ(cost_of(call, cluster).link_bytes, 2 * 2000);  // 2 ranks to 1, in either group
  call.ranks = {2, 1};
  EXPECT_EQ(cost_of(call, cluster).link_bytes, 0);
}

// Ranks without a stream for collectives wait for each.
TEST(SimulationTest, WithoutOverlapAllCommunicationIsExposed) {
  Config config;
  config.zero.stage = 2;
  config.zero.overlap_comm = false;
  SimulatedCluster cluster{.hosts = 2, .gpus = 2, .cpu = true, .link = 1e9, .nvlink = 1e10};
  cluster.flops = 1e9;
  const SimulatedStep step = simulate_step(config, layers(), cluster, 100'000);
  EXPECT_NEAR(step.exposed_s, step.communication_s, 1e-9);
  config.zero.overlap_comm = true;
  EXPECT_LT(simulate_step(config, layers(), cluster, 100'000).exposed_s, step.exposed_s);
}

// What cores send, copy and quantize comes on top of the time that the link itself takes.
TEST(SimulationTest, CoresThatCommunicateDoNotCompute) {
  Config config = stage_3();
  SimulatedCluster cluster{.hosts = 2, .gpus = 2, .cpu = true, .link = 1e9, .nvlink = 1e10};
  cluster.flops = 1e9;
  const auto time_of_cores = [&] {
    cluster.link_cpu = 0;
    const SimulatedStep free = simulate_step(config, layers(), cluster, 1000);
    cluster.link_cpu = 5e8;
    const SimulatedStep step = simulate_step(config, layers(), cluster, 1000);
    EXPECT_DOUBLE_EQ(step.exposed_s, free.exposed_s);
    const double bytes_s =
        static_cast<double>(step.link_bytes) / 5e8 + static_cast<double>(step.near_bytes) / 1e10;
    return std::pair(step.seconds() - free.seconds(), bytes_s);
  };
  const auto [plain, of_plain_bytes] = time_of_cores();
  EXPECT_NEAR(plain, of_plain_bytes, 1e-12);
  config.zero.quantized_weights = true;
  config.zero.quantized_gradients = true;
  const auto [quantized, of_quantized_bytes] = time_of_cores();
  // Matrices, of fp32, the first padded to four shards of whole blocks of 256: two gathers quantize
  // a quarter of each and dequantize all of it. Each rank has the sums of two in a half, quantizes
  // those of the other host, and dequantizes as many.
  constexpr double kMatrices = 40 * 256 + kLayers * 32 * 128;
  EXPECT_NEAR(quantized - of_quantized_bytes, kMatrices * 4 * (2 * 1.25 + 2 * 0.25) / 1e10, 1e-12);
}

// A step of equal blocks, whose backward computes as long as a reduction between two hosts takes.
// In forward, gathers are between hosts; in backward, too, or with hpZ within each host, which
// takes two thirds of that. One after the other, gathers and reductions of backward would then take
// two thirds of a reduction longer than its computation, in each block.
TEST(SimulationTest, OnGpusGathersAndReductionsShareTheirLinksAndDoNotWaitForOthers) {
  constexpr int kBlocks = 16;
  constexpr int64_t kSide = 256;
  constexpr int64_t kTokens = 1000;
  std::vector<ParameterSpec> specs;
  for (int i = 0; i < kBlocks; ++i) {
    specs.push_back({fmt::format("w{}", i), {kSide, kSide}, fmt::format("m{}", i), 0, true, ""});
  }
  SimulatedCluster cluster{.hosts = 2, .gpus = 2, .link = 2e9, .nvlink = 2e9};
  cluster.latency = cluster.near_latency = 0;
  const double reduction = 0.75 * 4 * kSide * kSide / cluster.link;  // seconds
  cluster.flops = 4.0 * kSide * kSide * kTokens / reduction;
  Config config = stage_3();
  config.zero.overlap_comm = true;
  const SimulatedStep step = simulate_step(config, specs, cluster, kTokens);
  EXPECT_GE(step.seconds(), step.communication_s);  // never more than the rate of the link
  EXPECT_LE(step.seconds(), 1.05 * step.communication_s);
  config.zero.hpz_partition_size = 2;
  const double exposed_s = simulate_step(config, specs, cluster, kTokens).exposed_s;
  constexpr double kForward = 0.5 * kBlocks;  // half of each gather is exposed
  EXPECT_LT(exposed_s, (kForward + 3) * reduction);
  EXPECT_GT(exposed_s, kForward * reduction);
}

TEST(SimulationTest, TenThousandRanksTakeSeconds) {
  PlanOptions options{.model = "7B",
                      .device_memory = "10GB",  // nothing but stage 3 fits
                      .micro_batch = 1,
                      .seq_len = 4096,
                      .simulate = "hosts=1280,gpus=8",
                      .link = "400Gbit",
                      .nvlink = "450GB/s",
                      .tflops = 400};
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(plan_report(options),
              HasAll("10240 ranks, 8 per host", "1280 hosts of 8 GPUs", "manifest of a save",
                     "fastest first", "hpZ of 8", Not(HasSubstr("stage 2, groups"))));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
  // Groups are equal parts of the hosts, whatever their number.
  options = {.model = "7B", .simulate = "hosts=15,gpus=6", .link = "400Gbit", .nvlink = "450GB/s"};
  EXPECT_THAT(plan_report(options),
              HasAll("slower ones", Not(HasSubstr("hpZ of 1 ")),
                     AnyOf(HasSubstr("groups of 18"), HasSubstr("groups of 30"))));
}

TEST(SimulationTest, WhatCannotBeMeantIsAnError) {
  PlanOptions options{.model = "7B", .simulate = "hosts=2,gpus=2"};
  const auto error = [&] { return error_of([&] { plan_report(options); }); };
  EXPECT_THAT(error(), HasSubstr("--simulate needs --link and --nvlink"));
  options.link = "400Gbit";
  for (const char* rate : {"450", "450GiB/s", "450Gbps", "0GB/s", "-1GB/s", "GB/s"}) {
    options.nvlink = rate;
    EXPECT_THAT(error(), HasSubstr(fmt::format("--nvlink '{}': expected a rate", rate)));
  }
  options.nvlink = "450GB/s";
  for (const char* cluster : {"hosts=0", "hosts", "hosts=2", "racks=2", "hosts=2,gpus=x",
                              "hosts=2,gpus=2,hosts=3", "hosts=2,gpus=2,"}) {
    options.simulate = cluster;
    EXPECT_THAT(error(), HasSubstr("expected hosts=H,gpus=G")) << cluster;
  }
  const PlanOptions good{
      .model = "7B", .simulate = "hosts=2,gpus=2", .link = "400Gbit", .nvlink = "450GB/s"};
  using Change = void (*)(PlanOptions&);
  for (const auto& [change, message] : std::vector<std::pair<Change, const char*>>{
           {[](auto& o) { o.simulate = "hosts=1000000,gpus=8"; }, "1048576 ranks together"},
           {[](auto& o) { o.link = "1e-300Gbit"; }, "expected a rate from 0.001MB/s"},
           {[](auto& o) { o.link = "1e300Gbit"; }, "expected a rate from 0.001MB/s"},
           {[](auto& o) { o.link_cpu = "1GB/s"; }, "--link_cpu applies only to CPU ranks"},
           {[](auto& o) { o.tflops = 400; }, "--tflops needs the number of tokens per step"},
           {[](auto& o) { o.tflops = o.seq_len = 4096; }, "got 0 sequences of 4096 tokens"},
           {[](auto& o) { o.micro_batch = o.seq_len = int64_t{1} << 40; }, "than 2^63 tokens"},
           {[](auto& o) { o.world_size = 4; }, "remove --world_size"},
           {[](auto& o) { o.json = true; }, "remove --json"},
           {[](auto& o) { o.simulate = ""; }, "they need --simulate"}}) {
    options = good;
    change(options);
    EXPECT_THAT(error(), HasSubstr(message));
  }
}

}  // namespace
}  // namespace zerorun::testing::simulation
