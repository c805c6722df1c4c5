#include <nlohmann/json.hpp>

#include "tests/harness.h"
#include "tools/plan/plan.h"
#include "tools/plan/simulation.h"
#include "zerorun/checkpoint.h"

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

constexpr HostLayout kHosts{.world_size = 8, .ranks_per_host = 2, .cpu = true};
constexpr HostLayout kGpus{.world_size = 8, .ranks_per_host = 2};

struct LinkCase {
  int stage;
  int64_t gradients, parameters;
  HostLayout layout = kHosts;
  int64_t group = 0;
  int64_t hpz = 1;
  bool in_fp32 = true;  // sums of CPU ranks
  bool drops = true;    // parameters after forward
};

// By hand: 4 hosts of 2 ranks, 3/4 of everything crosses a host's link.
TEST(PlanLink, IsWhatCrossesFromOneHostToAllOthers) {
  constexpr int64_t kAll = 1 << 20;
  constexpr int64_t kPart = kAll * 3 / 4;
  constexpr int64_t kRing = kAll * 7 / 8;  // NCCL's rings leave a host once
  constexpr HostLayout kAlone{.world_size = 4, .ranks_per_host = 1, .cpu = true};
  for (const LinkCase& one : {
           // Sums in fp32 to their owners, results in bf16.
           LinkCase{0, kPart * (4 + 2), 0},
           LinkCase{1, kPart * 4, kPart * 2},
           LinkCase{2, kPart * 4, kPart * 2},
           LinkCase{.stage = 3, .gradients = kPart * 4, .parameters = kPart * 2, .drops = false},
           LinkCase{3, kPart * 4, kPart * 2 * 2},
           LinkCase{1, kPart * 2, kPart * 2, kAlone},  // which has no sum to send
           LinkCase{0, kPart * (2 + 2), 0, kHosts, 0, 1, false},
           LinkCase{1, kPart * 2, kPart * 2, kHosts, 0, 1, false},
           LinkCase{0, kRing * 2 * 2, 0, kGpus},
           LinkCase{1, 0, 0, {.world_size = 8, .ranks_per_host = 8}},
           // Within a shard group nothing leaves a host, and sums of shards go there and back.
           LinkCase{1, kPart * (4 + 4), 0, kHosts, 2},
           LinkCase{2, kPart * (4 + 4), 0, kHosts, 2},
           LinkCase{3, kPart * (4 + 4), 0, kHosts, 2},
           LinkCase{2, kPart * (2 + 2), 0, kHosts, 2, 1, false},
           // Two groups of two hosts: half of all within a group, and half of a host's half to the
           // other one.
           LinkCase{3, kAll / 2 * 4 + kAll / 4 * (4 + 4), kAll / 2 * 2 * 2, kHosts, 4},
           // Of the two gathers of a step with hpZ one stays within a host, or two.
           LinkCase{3, kPart * 4, kPart * 2, kHosts, 0, 2},
           LinkCase{3, kPart * 4, kPart * 2 + kAll / 2 * 2, kHosts, 0, 4},
           LinkCase{3, kRing * 2, kRing * 2, kGpus, 0, 2},
       }) {
    Config config = link_config();
    config.zero.stage = one.stage;
    config.zero.shard_group_size = one.group;
    config.zero.hpz_partition_size = one.hpz;
    if (!one.in_fp32) config.precision.communication_dtype = DType::bf16;
    if (one.drops) config.zero.max_live_parameters = 0;
    const LinkTraffic traffic = plan_link(config, one_weight(), one.layout);
    EXPECT_EQ(traffic.gradients, one.gradients)
        << "stage " << one.stage << " group " << one.group << " hpZ " << one.hpz;
    EXPECT_EQ(traffic.parameters, one.parameters)
        << "stage " << one.stage << " group " << one.group << " hpZ " << one.hpz;
  }
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
  const auto with = [&](const std::string& heads) {
    return folder.write("ds.json", R"({"optimizer": {"type": "Muon", "params": {"lr": 0.02)" +
                                       heads + R"(}}, "zero_optimization": {"stage": 2}})");
  };
  PlanOptions options{.config = with(""), .model = "gpt2"};
  const std::string expected = plan_report(options);
  for (const char* heads : {R"({"*.q_proj.weight": 12})", R"({"*": 7})"}) {
    with(fmt::format(R"(, "muon_heads": {})", heads));
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
  const Scratch folder;
  const std::string bf16 = folder.write("bf16.json", R"({"bf16": {"enabled": true}})");
  const std::string fast = folder.write(
      "fast.json",
      R"({"bf16": {"enabled": true}, "zerorun": {"train": {"fast_attention": true}}})");
  const auto activations = [](const std::string& config, bool fast_attention, bool cpu = false) {
    const std::string report = plan_report({.config = config,
                                            .model = "gpt2",
                                            .cpu = cpu,
                                            .micro_batch = 16,
                                            .seq_len = 4096,
                                            .fast_attention = fast_attention});
    const size_t at = report.find("activations");
    return report.substr(at, report.find('\n', at) - at);
  };
  EXPECT_NE(activations("", true), activations("", false));
  EXPECT_EQ(activations(fast, true), activations(fast, false));
  EXPECT_NE(activations(fast, false), activations(bf16, false));
  EXPECT_EQ(activations(bf16, false), activations("", false));
  EXPECT_EQ(activations(bf16, true, true), activations(bf16, false, true));
}

// 48 MB of masters and states where nothing is left out: offloaded ones exceed what is
// kept for them.
std::vector<ParameterSpec> specs_of_plan() {
  std::vector<ParameterSpec> specs;
  for (int i = 0; i < 6; ++i) {
    specs.push_back({fmt::format("h.{}", i), {1024, 1000}, fmt::format("h.{}", i), 0, true, ""});
  }
  specs.push_back({"frozen", {100'000}, "h.0", 0, false, ""});
  specs.push_back({"tied", {1024, 1000}, "h.1", 0, true, "h.0"});
  return specs;
}

// What the saver of a real engine would take; the plan leaves the padding of its pieces out.
void expect_planned(int stage, DType dtype, int world_size,
                    OffloadDevice optimizer = OffloadDevice::none,
                    OffloadDevice param = OffloadDevice::none, int64_t asked = 0) {
  const std::vector<ParameterSpec> specs = specs_of_plan();
  Config config;
  config.batch.accumulation_steps = 1;
  config.precision.param_dtype = dtype;
  config.zero.stage = stage;
  config.offload.optimizer.device = optimizer;
  config.offload.param.device = param;
  config.offload.optimizer.nvme_path = config.offload.param.nvme_path = test_paths::build();
  EXPECT_EQ(plan_snapshot(config, specs, {world_size, world_size, true}), 0) << "nothing is asked";
  config.checkpoint.async_save = true;
  config.checkpoint.async_buffer_size = asked;
  const int64_t plan = plan_snapshot(config, specs, {world_size, world_size, true});
  testing::run_ranks(world_size, [&](Communicator& comm) {
    const auto device = make_cpu_device();
    const auto engine = Engine::create(config, *device, comm, specs, {ParameterGroup{}});
    const auto real =
        static_cast<double>(snapshot_nbytes(engine->states(), static_cast<uint64_t>(asked)));
    EXPECT_NEAR(static_cast<double>(plan), real, 0.01 * real + 20'000)
        << fmt::format("stage {}, {}, {} ranks, offload {} {}, asked {}", stage, name_of(dtype),
                       world_size, static_cast<int>(optimizer), static_cast<int>(param), asked);
  });
}

TEST(PlanSnapshot, IsWhatTheSaverOfAnEngineTakes) {
  using enum OffloadDevice;
  for (const int stage : {0, 1, 2, 3}) {
    for (const auto& [dtype, world_size] :
         {std::pair(DType::bf16, 1), {DType::bf16, 2}, {DType::bf16, 3}, {DType::fp32, 2}}) {
      expect_planned(stage, dtype, world_size);
      expect_planned(stage, dtype, world_size, none, none, 1 << 20);
      if (stage == 0) continue;
      expect_planned(stage, dtype, world_size, cpu);
      expect_planned(stage, dtype, world_size, nvme);
      if (stage < 3) continue;
      expect_planned(stage, dtype, world_size, cpu, cpu);
      expect_planned(stage, dtype, world_size, none, cpu);
    }
  }
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
}  // namespace zerorun
