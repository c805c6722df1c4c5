// Full parameters in memory of a framework's, from a gather to the drop.

#include "tests/zero/toy_run.h"
#include "zerorun/out_of_memory.h"

namespace zerorun::testing::full_memory {
namespace {

// By bucket: what an engine has at the moment.
class Lender {
 public:
  EngineHooks::FullMemory lend() {
    return [this](int bucket, size_t nbytes) {
      if (bucket == refused_ && broken_) throw DeviceError("the device does not work any more");
      if (bucket == refused_) throw OutOfMemory("out of memory");
      auto& block = given_[bucket];
      EXPECT_TRUE(block.empty()) << "bucket " << bucket << " is asked for twice";
      block.resize(nbytes);
      return Buffer(block.data(), nbytes, [this, bucket] { given_.erase(bucket); });
    };
  }
  // The next requests for this bucket fail; -1: none.
  void refuse(int bucket, bool broken = false) {
    refused_ = bucket;
    broken_ = broken;
  }
  size_t given() const { return given_.size(); }
  const std::byte* data(int bucket) const { return given_.at(bucket).data(); }

 private:
  std::map<int, std::vector<std::byte>> given_;
  int refused_ = -1;
  bool broken_ = false;  // not for lack of memory
};

Config config_of(bool share_parameters) {
  Config config = gathering_config(3);
  config.zero.prefetch_bucket_size = 0;
  config.share_parameters = share_parameters;
  return config;
}

// Engines whose full parameters lie in a Lender's memory.
template <typename Body>
void with_memory(const Config& config, int ranks, const Body& body) {
  std::vector<Lender> memories(static_cast<size_t>(ranks));  // longer than the engines
  run_engines({config, ranks, {}, ToyModel::specs()}, [&](Engine& engine, Communicator& comm) {
    Lender& memory = memories[static_cast<size_t>(comm.rank())];
    engine.hooks().use_full_memory(memory.lend());
    body(engine, memory);
  });
}

TEST(FullMemory, IsTheFrameworksFromAGatherToTheDrop) {
  with_memory(config_of(false), 2, [](Engine& engine, Lender& memory) {
    const ModuleId module = engine.module_id("h.0");
    const ParameterId weight = engine.parameter_id("h.0.weight");
    const FullPlace place = engine.hooks().full_place(weight).value();
    for (int again = 0; again < 2; ++again) {
      engine.gather(module);
      const auto* full = reinterpret_cast<const float*>(memory.data(place.bucket)) + place.offset;
      EXPECT_EQ(engine.parameter(weight).as<float>(), full);
      for (int64_t i = 0; i < engine.numel(weight); ++i) {
        ASSERT_EQ(full[i], ToyModel::initial(weight, i)) << i;
      }
      EXPECT_LE(place.offset + engine.numel(weight), place.bucket_numel);
      engine.release(module);
      EXPECT_EQ(memory.given(), 0);
    }
  });
}

TEST(FullMemory, APrefetchWithoutMemoryLeavesTheGatherThatAskedForIt) {
  Config config = config_of(false);
  config.zero.overlap_comm = true;  // else nothing is gathered ahead
  config.zero.prefetch_bucket_size = 1'000'000;
  with_memory(config, 1, [](Engine& engine, Lender& memory) {
    const auto pass = [&] {
      for (const char* name : {"h.0", "h.1", "expert"}) visit(engine, name);
    };
    pass();
    pass();
    engine.gather(engine.module_id("h.0"));
    const ParameterId next = engine.parameter_id("h.1.weight");
    EXPECT_NE(engine.parameter(next).data, nullptr);  // gathered ahead
    engine.release(engine.module_id("h.0"));
    engine.states().accept_changes();  // drops what was gathered ahead
    pass();
    engine.states().accept_changes();
    const int bucket = engine.hooks().full_place(next)->bucket;
    memory.refuse(bucket, true);
    EXPECT_THROW(engine.gather(engine.module_id("h.0")), DeviceError);
    memory.refuse(-1);
    pass();  // in the learned order again
    pass();
    engine.states().accept_changes();
    memory.refuse(bucket);
    engine.gather(engine.module_id("h.0"));
    const ParameterId weight = engine.parameter_id("h.0.weight");
    EXPECT_EQ(engine.parameter(weight).as<float>()[0], ToyModel::initial(weight, 0));
    engine.release(engine.module_id("h.0"));
    EXPECT_THROW(engine.gather(engine.module_id("h.1")), DeviceError);
    memory.refuse(-1);
    visit(engine, "h.1");
  });
}

TEST(FullMemory, OfSeveralModulesNoneIsHeldWhenOneHasNone) {
  with_memory(config_of(false), 1, [](Engine& engine, Lender& memory) {
    const ModuleId head = engine.module_id("head");  // which reads the embedding's weight too
    for (const char* name : {"embed.weight", "head.bias"}) {
      memory.refuse(engine.hooks().full_place(engine.parameter_id(name))->bucket);
      EXPECT_THROW(engine.gather(head), DeviceError);
      EXPECT_EQ(memory.given(), 0) << name;
    }
    memory.refuse(-1);
    engine.gather(head);
    EXPECT_EQ(memory.given(), 2);
    engine.release(head);
    EXPECT_EQ(memory.given(), 0);
  });
}

TEST(FullMemory, HasNoPlaceForParametersThatStayWhereTheyAre) {
  for (const int stage : {0, 2, 3}) {  // at stage 3 the ranks share memory
    Config config = config_of(true);
    config.zero.stage = stage;
    run_engines({config}, [&](Engine& engine, Communicator&) {
      EXPECT_EQ(engine.hooks().full_place(engine.parameter_id("h.0.weight")), std::nullopt)
          << stage;
    });
  }
}

}  // namespace
}  // namespace zerorun::testing::full_memory
