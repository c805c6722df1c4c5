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
      if (bucket == refused_) throw OutOfMemory("out of memory");
      auto& block = given_[bucket];
      EXPECT_TRUE(block.empty()) << "bucket " << bucket << " is asked for twice";
      block.resize(nbytes);
      return Buffer(block.data(), nbytes, [this, bucket] { given_.erase(bucket); });
    };
  }
  // The next requests for this bucket fail; -1: none.
  void refuse(int bucket) { refused_ = bucket; }
  size_t given() const { return given_.size(); }
  const std::byte* data(int bucket) const { return given_.at(bucket).data(); }

 private:
  std::map<int, std::vector<std::byte>> given_;
  int refused_ = -1;
};

// Engines whose full parameters lie in a Lender's memory.
template <typename Body>
void with_memory(int ranks, const Body& body) {
  std::vector<Lender> memories(static_cast<size_t>(ranks));  // longer than the engines
  Config config = gathering_config(3);
  config.zero.prefetch_bucket_size = 0;
  run_engines({config, ranks}, [&](Engine& engine, Communicator& comm) {
    Lender& memory = memories[static_cast<size_t>(comm.rank())];
    engine.hooks().use_full_memory(memory.lend());
    body(engine, memory);
  });
}

TEST(FullMemory, IsTheFrameworksFromAGatherToTheDrop) {
  with_memory(2, [](Engine& engine, Lender& memory) {
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

TEST(FullMemory, OfSeveralModulesNoneIsHeldWhenOneHasNone) {
  with_memory(1, [](Engine& engine, Lender& memory) {
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
    Config config = gathering_config(stage);
    config.share_parameters = true;
    run_engines({config}, [&](Engine& engine, Communicator&) {
      EXPECT_EQ(engine.hooks().full_place(engine.parameter_id("h.0.weight")), std::nullopt)
          << stage;
    });
  }
}

}  // namespace
}  // namespace zerorun::testing::full_memory
