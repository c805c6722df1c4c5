// The cost of exchanges of Muon's directions.
#include "tests/common.h"
#include "tools/plan/simulation.h"

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

}  // namespace
}  // namespace zerorun::simulated_exchanges
