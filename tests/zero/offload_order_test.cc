// Operations that may not happen before, or while, offloaded work is under way.

#include "tests/zero/toy_run.h"

namespace zerorun::testing {
namespace {

// Muon's directions of a bucket are on the device until the host has fetched its part; those of the
// next, larger bucket must not overwrite them before.
TEST(OffloadOrder, DirectionsStayUntilTheHostHasReadThem) {
  const auto train = [](const Config& config) {
    std::vector<ParameterSpec> specs = {{"large", {64, 64}, "large"}, {"small", {32, 32}, "small"}};
    for (ParameterSpec& spec : specs) spec.use_muon = true;
    return hash_after({config, 1, {}, specs}, [](Engine& engine, Communicator&) {
      for (int64_t step = 0; step < 20; ++step) {
        write_gradients(engine,
                        [&](ParameterId id, int64_t i) { return ToyModel::initial(id, i + step); });
        engine.end_micro_step();
        engine.step();
      }
    });
  };
  Config config = base_config(3, DType::fp32);
  config.optimizer.type = "Muon";
  config.zero.param_persistence_threshold = 0;
  config.zero.overlap_comm = true;
  const uint64_t expected = train(config);
  Config other = offloaded(config, 0.3);
  other.offload.sub_group_size = 256;
  for (int run = 0; run < 5; ++run) EXPECT_EQ(train(other), expected);
}

// Copies may still run when an engine ends in the middle of a batch, or with an error.
TEST(OffloadOrder, AnEngineMayEndBetweenBackwardAndStep) {
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

// The step is that of what came after, whatever was accumulated before and wherever it is stored.
TEST(OffloadOrder, ADroppedBatchLeavesNoTrace) {
  const auto train = [](Config config, int64_t steps, int dropped) {
    config.batch.accumulation_steps = steps;
    return hash_after({config}, [&](Engine& engine, Communicator& comm) {
      for (int i = 0; i < dropped; ++i) ToyModel::micro_step(engine, comm.rank(), 5 + i, 9);
      if (dropped > 0) engine.drop_batch();
      for (int64_t i = 0; i < steps; ++i) ToyModel::micro_step(engine, comm.rank(), i, 0);
      engine.step();
    });
  };
  for (int stage = 0; stage <= 3; ++stage) {
    for (const int64_t steps : {1, 3}) {
      const Config config = base_config(stage);
      const uint64_t expected = train(config, steps, 0);
      for (const int dropped : {1, 3}) {
        if (dropped > steps) continue;
        EXPECT_EQ(train(config, steps, dropped), expected) << "stage " << stage;
        if (stage == 0) continue;
        EXPECT_EQ(train(offloaded(config, 0.5), steps, dropped), expected) << "stage " << stage;
      }
    }
  }
}

}  // namespace
}  // namespace zerorun::testing
