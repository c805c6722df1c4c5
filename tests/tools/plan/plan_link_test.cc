#include <nlohmann/json.hpp>

#include "tests/common.h"
#include "tests/harness.h"
#include "tests/paths.h"
#include "tests/scratch.h"
#include "tools/plan/plan.h"
#include "tools/plan/simulation.h"
#include "zerorun/checkpoint.h"
#include "zerorun/engine.h"

namespace zerorun {
namespace {

std::vector<ParameterSpec> one_weight() {
  std::vector<ParameterSpec> specs(1);
  specs[0].name = "weight";
  specs[0].shape = {1 << 10, 1 << 10};
  return specs;
}

Config link_config() {
  Config config;
  config.precision.param_dtype = DType::bf16;
  config.optimizer.type = "AdamW";
  config.zero.param_persistence_threshold = 0;
  return config;
}

// By hand: 4 hosts of 2 ranks, 3/4 of everything crosses a host's link.
TEST(PlanLink, IsWhatCrossesFromOneHostToAllOthers) {
  Config config = link_config();
  const std::vector<ParameterSpec> specs = one_weight();
  const HostLayout layout{.world_size = 8, .ranks_per_host = 2, .cpu = true};
  const int64_t n = int64_t{3} << 18;  // 3/4 of 2^20 elements
  const auto at = [&](int stage, const HostLayout& where) {
    config.zero.stage = stage;
    const LinkTraffic traffic = plan_link(config, specs, where);
    return std::pair(traffic.gradients, traffic.parameters);
  };
  // Sums in fp32 to their owners, results in bf16.
  EXPECT_EQ(at(0, layout), std::pair(n * (4 + 2), int64_t{0}));
  EXPECT_EQ(at(1, layout), std::pair(n * 4, n * 2));
  EXPECT_EQ(at(2, layout), at(1, layout));
  EXPECT_EQ(at(3, layout), std::pair(n * 4, n * 2));  // small enough to stay after forward
  config.zero.max_live_parameters = 0;
  EXPECT_EQ(at(3, layout), std::pair(n * 4, n * 2 * 2));
  // A rank alone on its host has no sum to send.
  EXPECT_EQ(at(1, {.world_size = 4, .ranks_per_host = 1, .cpu = true}), std::pair(n * 2, n * 2));
  config.precision.communication_dtype = DType::bf16;
  EXPECT_EQ(at(0, layout), std::pair(n * (2 + 2), int64_t{0}));
  EXPECT_EQ(at(1, layout), std::pair(n * 2, n * 2));
  // NCCL's rings leave a host once: 7/8 of each bucket, twice in an all_reduce.
  const int64_t ring = int64_t{7} << 17;
  EXPECT_EQ(at(0, {.world_size = 8, .ranks_per_host = 2}), std::pair(ring * 2 * 2, int64_t{0}));
  EXPECT_EQ(at(1, {.world_size = 8, .ranks_per_host = 8}), std::pair(int64_t{0}, int64_t{0}));
}

// The same hosts: within a shard group nothing leaves a host, and sums of shards go there and back.
TEST(PlanLink, OfShardGroupsIsTheSumOfShards) {
  Config config = link_config();
  config.zero.max_live_parameters = 0;
  const std::vector<ParameterSpec> specs = one_weight();
  const int64_t numel = 1 << 20;
  const auto at = [&](int stage, int64_t group) {
    config.zero.stage = stage;
    config.zero.shard_group_size = group;
    const LinkTraffic traffic =
        plan_link(config, specs, {.world_size = 8, .ranks_per_host = 2, .cpu = true});
    return std::pair(traffic.gradients, traffic.parameters);
  };
  for (const int stage : {1, 2, 3}) {
    EXPECT_EQ(at(stage, 2), std::pair(numel * 3 / 4 * (4 + 4), int64_t{0})) << stage;
  }
  // Two groups of two hosts: half of all within a group, and half of a host's half to the other
  // one.
  EXPECT_EQ(at(3, 4), std::pair(numel / 2 * 4 + numel / 4 * (4 + 4), numel / 2 * 2 * 2));
  config.precision.communication_dtype = DType::bf16;
  EXPECT_EQ(at(2, 2), std::pair(numel * 3 / 4 * (2 + 2), int64_t{0}));
}

// The same hosts: of the two gathers of a step one stays within a host.
TEST(PlanLink, OfHpzIsOneGather) {
  Config config = link_config();
  config.zero.stage = 3;
  config.zero.max_live_parameters = 0;
  const std::vector<ParameterSpec> specs = one_weight();
  const int64_t numel = 1 << 20;
  const auto gathered = [&](int64_t secondary, bool cpu) {
    config.zero.hpz_partition_size = secondary;
    const HostLayout layout{.world_size = 8, .ranks_per_host = 2, .cpu = cpu};
    return plan_link(config, specs, layout).parameters;
  };
  EXPECT_EQ(gathered(1, true), numel * 3 / 4 * 2 * 2);
  EXPECT_EQ(gathered(2, true), numel * 3 / 4 * 2);
  EXPECT_EQ(gathered(4, true), numel * 3 / 4 * 2 + numel / 2 * 2);  // of two hosts
  EXPECT_EQ(gathered(2, false), numel * 7 / 8 * 2);
  config.batch.accumulation_steps = 3;
  EXPECT_EQ(gathered(2, true), numel * 3 / 4 * 2);
}

// Muon's exchanges are not even, and those of GPUs start together.
TEST(PlanLink, IsWhatASimulatedStepSends) {
  for (const bool cpu : {false, true}) {
    SimulatedCluster cluster{.hosts = 2, .gpus = 4, .cpu = cpu, .link = 1e9, .nvlink = 1e10};
    const HostLayout layout{.world_size = 8, .ranks_per_host = 4, .cpu = cpu};
    const std::vector<ParameterSpec> specs = plan_model("gpt2").specs;
    Config config = link_config();
    config.optimizer.type = "Muon";
    for (config.zero.stage = 0; config.zero.stage <= 3; ++config.zero.stage) {
      const LinkTraffic traffic = plan_link(config, specs, layout);
      EXPECT_EQ(traffic.gradients + traffic.parameters,
                simulate_step(config, specs, cluster, 0).link_bytes)
          << "stage " << config.zero.stage << (cpu ? " cpu" : "");
    }
  }
}

TEST(PlanLink, IsATableOfItsOwnWhereThereAreSeveralHosts) {
  PlanOptions options{.model = "gpt2", .world_size = 4};
  EXPECT_THAT(plan_report(options), Not(HasSubstr("over a host's link")));
  options.ranks_per_host = 2;
  EXPECT_THAT(plan_report(options), ContainsRegex("over a host's link in a step[^\n]+\n"
                                                  "stage 0 +[0-9.]+ MiB +- +[0-9.]+ MiB"));
}

TEST(PlanLink, QuantizesIfAnyShardGroupSpansHosts) {
  const Scratch folder;
  folder.write("ds.json", R"({"zero_optimization": {"stage": 3, "zero_quantized_weights": true},
                              "zerorun": {"shard_group_size": 2}})");
  PlanOptions options{.config = folder.path() / "ds.json", .model = "gpt2", .world_size = 12};
  for (const auto& [ranks_per_host, idle] : {std::pair(4, true), std::pair(3, false)}) {
    options.ranks_per_host = ranks_per_host;
    const bool says = plan_report(options).find("no effect") != std::string::npos;
    EXPECT_EQ(says, idle) << ranks_per_host << " ranks per host";
  }
}

// The planned model has names and shapes of its own, which the patterns are not about.
TEST(Plan, HeadsOfMuonAreNoMatterOfTheModelThatIsPlanned) {
  const Scratch folder;
  const auto file = [&](const std::string& name, const std::string& heads) {
    return folder.write(name, R"({"optimizer": {"type": "Muon", "params": {"lr": 0.02)" + heads +
                                  R"(}}, "zero_optimization": {"stage": 2}})");
  };
  const std::string plain = file("ds.json", "");
  PlanOptions options{.config = plain, .model = "gpt2"};
  const std::string expected = plan_report(options);
  for (const char* heads : {R"({"*.q_proj.weight": 12})", R"({"*": 7})"}) {
    options.config = file("ds.json", fmt::format(R"(, "muon_heads": {})", heads));
    EXPECT_EQ(plan_report(options), expected) << heads;
    PlanOptions simulated = options;
    simulated.simulate = "hosts=2,gpus=2";
    simulated.link = "400Gbit";
    simulated.nvlink = "450GB/s";
    EXPECT_THAT(plan_report(simulated), HasSubstr("a step on 2 hosts of 2 GPUs"));
    PlanOptions fitted = options;
    fitted.device_memory = "80GB";
    fitted.fit = folder.path() / "fit.json";
    plan_report(fitted);
    EXPECT_EQ(load_config(fitted.fit).config.optimizer.muon_heads.size(), 1U);  // still the user's
  }
}

}  // namespace
}  // namespace zerorun

namespace zerorun::simulated_exchanges {
namespace {

std::vector<ParameterSpec> matrices() {
  std::vector<ParameterSpec> specs;
  for (const std::string name : {"a", "b", "c", "d"}) {
    specs.push_back({.name = name, .shape = {32, 128}, .module = name, .use_muon = true});
  }
  return specs;
}

// By hand: 4 ranks have 100 elements each, and one owns all of them.
TEST(ExchangesTest, AnExchangeOfDirectionsCostsWhatTheBusiestHostSendsOrReceives) {
  SimulatedCluster cluster{.hosts = 2, .gpus = 2, .link = 1e9, .nvlink = 1e10};
  cluster.latency = 1e-3;
  const std::vector<int64_t> shards = {0, 100, 200, 300, 400};
  const auto call_to = [&](const std::vector<int64_t>& owned, bool back) {
    const Cuts cuts = back ? Cuts{owned, shards} : Cuts{shards, owned};
    return StepCall{.op = Collective::all_to_all,
                    .ranks = {4, 1},
                    .bytes = 400,
                    .cuts = std::make_shared<const Cuts>(cuts)};
  };
  const std::vector<int64_t> second = {0, 0, 400, 400, 400};
  const std::vector<int64_t> third = {0, 0, 0, 400, 400};
  for (const bool back : {false, true}) {
    const std::array calls = {call_to(second, back), call_to(third, back)};
    const CallCost one = cost_of_exchanges(std::span(calls).first(1), cluster);
    EXPECT_EQ(one.link_bytes, 2 * 400);  // what the ranks of the other host have
    EXPECT_EQ(one.near_bytes, 400);
    EXPECT_EQ(one.link_messages, 2);
    EXPECT_EQ(one.messages, back ? 3 : 1);
    EXPECT_NEAR(one.seconds, (back ? 3e-3 : 1e-3) + 800e-9, 1e-12);
    const CallCost both = cost_of_exchanges(calls, cluster);
    EXPECT_EQ(both.link_bytes, 2 * 400);  // each host's link either way
    EXPECT_EQ(both.near_bytes, 400);
  }
  const StepCall stays = call_to(shards, false);
  EXPECT_EQ(cost_of_exchanges({&stays, 1}, cluster).messages, 0);
}

// Owners that have what they need cost nothing: less than an even exchange of as many bytes.
TEST(ExchangesTest, AStepOfMuonExchangesWhatItsOwnersLack) {
  Config config;
  config.zero.stage = 2;
  config.optimizer.type = "Muon";
  const SimulatedCluster cluster{.hosts = 2, .gpus = 1, .link = 1e9, .nvlink = 1e10};
  const ShardedModel model(config, matrices(), cluster.ranks(), /*computes_on_host=*/false);
  int64_t even = 0;
  int64_t exchanged = 0;
  for (const StepCall& call : step_calls(model, 1)) {
    if (call.cuts == nullptr) continue;
    even += cost_of(call, cluster).link_bytes;
    exchanged += cost_of_exchanges({&call, 1}, cluster).link_bytes;
  }
  EXPECT_GT(even, 0);
  EXPECT_EQ(exchanged, 0);  // two matrices of four each
}

// On GPUs in 16 bits; not on CPUs, whose attention takes no memory.
TEST(WorkloadTest, CountsTheMemoryOfAttentionsBackward) {
  PlanOptions options{.model = "gpt2", .micro_batch = 16, .seq_len = 4096};
  const auto activations = [](const PlanOptions& given) {
    const std::string report = plan_report(given);
    const size_t at = report.find("activations");
    return report.substr(at, report.find('\n', at) - at);
  };
  const std::string deterministic = activations(options);
  options.fast_attention = true;
  EXPECT_NE(activations(options), deterministic);
  const Scratch folder;
  options.config = folder.write(
      "fast.json",
      R"({"bf16": {"enabled": true}, "zerorun": {"train": {"fast_attention": true}}})");
  const std::string fast = activations(options);
  options.fast_attention = false;
  EXPECT_EQ(activations(options), fast);
  options.config = folder.write("bf16.json", R"({"bf16": {"enabled": true}})");
  EXPECT_EQ(activations(options), deterministic);
  options.cpu = true;
  const std::string on_cpu = activations(options);
  options.fast_attention = true;
  EXPECT_EQ(activations(options), on_cpu);
}

// 48 MB of masters and states where nothing is left out: offloaded ones are more than what is kept
// for them.
std::vector<ParameterSpec> specs_of_plan() {
  std::vector<ParameterSpec> specs;
  for (int i = 0; i < 6; ++i) {
    specs.push_back({fmt::format("h.{}", i), {1024, 1000}, fmt::format("h.{}", i), 0, true, ""});
  }
  specs.push_back({"frozen", {100'000}, "h.0", 0, false, ""});
  specs.push_back({"tied", {1024, 1000}, "h.1", 0, true, "h.0"});
  return specs;
}

struct Planned {
  int stage = 0;
  DType dtype = DType::bf16;
  OffloadDevice optimizer = OffloadDevice::none;
  OffloadDevice param = OffloadDevice::none;
  int64_t asked = 0;
};

Config config_of(const Planned& planned) {
  Config config;
  config.batch.accumulation_steps = 1;
  config.precision.param_dtype = planned.dtype;
  config.zero.stage = planned.stage;
  config.offload.optimizer.device = planned.optimizer;
  config.offload.optimizer.nvme_path = test_paths::build();
  config.offload.param.device = planned.param;
  config.offload.param.nvme_path = test_paths::build();
  config.checkpoint.async_save = true;
  config.checkpoint.async_buffer_size = planned.asked;
  return config;
}

// What the saver of a real engine would take; the plan leaves the padding of its pieces out.
void expect_planned(const Planned& planned, int world_size) {
  const std::vector<ParameterSpec> specs = specs_of_plan();
  const Config config = config_of(planned);
  const int64_t plan = plan_snapshot(config, specs, {world_size, world_size, true});
  testing::run_ranks(world_size, [&](Communicator& comm) {
    const auto device = make_cpu_device();
    const auto engine = Engine::create(config, *device, comm, specs, {ParameterGroup{}});
    const auto real = static_cast<int64_t>(
        snapshot_nbytes(engine->states(), static_cast<uint64_t>(planned.asked)));
    const std::string what =
        fmt::format("stage {}, {}, {} ranks, offload {} {}, asked {}", planned.stage,
                    name_of(planned.dtype), world_size, static_cast<int>(planned.optimizer),
                    static_cast<int>(planned.param), planned.asked);
    EXPECT_NEAR(static_cast<double>(plan), static_cast<double>(real), 0.01 * real + 20'000) << what;
  });
}

TEST(PlanSnapshot, IsWhatTheSaverOfAnEngineTakes) {
  using enum OffloadDevice;
  for (const int stage : {0, 1, 2, 3}) {
    for (const DType dtype : {DType::bf16, DType::fp32}) {
      for (const int world_size : {1, 2, 3}) {
        if (dtype == DType::fp32 && world_size != 2) continue;
        expect_planned({stage, dtype}, world_size);
        expect_planned({stage, dtype, none, none, 1 << 20}, world_size);
        if (stage == 0) continue;
        expect_planned({stage, dtype, cpu}, world_size);
        expect_planned({stage, dtype, nvme}, world_size);
        if (stage == 3) expect_planned({stage, dtype, cpu, cpu}, world_size);
        if (stage == 3) expect_planned({stage, dtype, none, cpu}, world_size);
      }
    }
  }
}

TEST(PlanSnapshot, IsNothingWithoutAsynchronousSaves) {
  Config config = config_of({2});
  config.checkpoint.async_save = false;
  EXPECT_EQ(plan_snapshot(config, specs_of_plan(), {2, 2, true}), 0);
}

TEST(PlanJson, ItSaysWhatTheTableSays) {
  const PlanOptions options{.model = "7B", .world_size = 8, .device_memory = "40GiB", .json = true};
  const auto settings = nlohmann::json::parse(plan_report(options))["settings"];
  ASSERT_EQ(settings.size(), all_settings().size());
  for (const auto& one : settings) {
    EXPECT_EQ(one["fits"], one["device_bytes"] <= int64_t{40} << 30) << one;
  }
  EXPECT_EQ(settings[0]["setting"], "stage 1");
}

}  // namespace
}  // namespace zerorun::simulated_exchanges
