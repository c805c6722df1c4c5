#include "zerorun/engine.h"

#include "os/host_limits.h"
#include "tests/zero/toy_run.h"
#include "tests/zero/wrapped_communicator.h"
#include "zerorun/out_of_memory.h"

namespace zerorun::testing {
namespace {

// Pages of masters come when they are written: nothing else would refuse them.
TEST(EngineMemory, MoreThanTheHostHasIsRefusedOnEveryRank) {
  Config config;
  config.zero.stage = 3;
  config.precision.param_dtype = DType::bf16;
  const auto available = static_cast<int64_t>(host_limits().available_bytes());
  // Parameters have 2 bytes, which fit; masters have 4 more.
  const std::vector<ParameterSpec> specs = {{"a", {available / 5}, "m", 0, true, ""}};
  run_ranks(2, [&](Communicator& comm) {
    const auto device = make_cpu_device();
    const auto needed = [&](int64_t moved_nbytes) {
      const std::string error = error_of<ConfigError>([&] {
        Engine::create(config, *device, comm, specs, {ParameterGroup{}},
                       {.moved_nbytes = moved_nbytes});
      });
      EXPECT_THAT(error, HasSubstr("of host memory for each of 2 ranks"));
      return error.substr(0, error.find(" of host memory"));
    };
    EXPECT_THAT(needed(0), HasSubstr("the engine needs"));
    EXPECT_NE(needed(0), needed(available / 10));  // less: what is moved makes room
  });
}

TEST(EngineSpecs, ContradictionsNameTheParameter) {
  const ParameterSpec packed{.name = "a", .shape = {2}, .dtype = DType::uint8};
  ParameterSpec frozen = packed;
  frozen.trainable = false;
  const std::vector<std::pair<std::vector<ParameterSpec>, std::string>> refused = {
      {{}, "no parameters"},
      {{{"a", {2}}, {"a", {2}}}, "a occurs twice"},
      {{{"a", {-1}}}, "negative"},
      {{{"a", {1LL << 40, 1LL << 40}}}, "2^63"},
      {{{"a", {1}, "m", 3}}, "group 3"},
      {{{"a", {1}, "m", 0, true, "b"}}, "not listed before"},
      {{{"a", {2}}, {"b", {3}, "m", 0, true, "a"}}, "shape"},
      {{packed}, "a is uint8 and trainable"},
      {{frozen, {"b", {2}, "m", 0, false, "a"}}, "dtype must agree"}};
  for (const auto& [specs, text] : refused) {
    EXPECT_THAT(refusal({.ranks = 1, .specs = specs, .groups = {ParameterGroup{}}}),
                HasSubstr(text));
  }
}

TEST(EngineSpecs, HeadsOfMuonAreRowsOfOutputs) {
  ToyJob job{.ranks = 1, .specs = {{"a", {4, 6}, "m"}}, .groups = {ParameterGroup{}}};
  job.config.optimizer.type = "Muon";
  job.config.optimizer.muon_heads = {{"*", 2}};
  job.specs[0].use_muon = true;
  EXPECT_EQ(refusal(job), "");
  job.specs[0].outputs_are_columns = true;
  job.config.optimizer.muon_heads = {{"*", 5}};  // which does not divide the rows either
  EXPECT_THAT(refusal(job), HasSubstr("got 5 heads of a, whose columns are the outputs"));
}

TEST(EngineCalls, OutOfOrderNameTheParameter) {
  for (int stage = 0; stage <= 3; ++stage) {
    run_engines({gathering_config(stage), 1}, [](Engine& engine, Communicator&) {
      EXPECT_ERROR_OF(ConfigError, engine.parameter_id("nope"), "nope");
      EXPECT_ERROR_OF(ConfigError, engine.module_id("nope"), "nope");
      const auto error = [](const auto& call) { return error_of<InternalError>(call); };
      EXPECT_THAT(error([&] { engine.step(); }), HasSubstr("end_micro_step"));
      const ParameterId frozen = engine.parameter_id("h.1.frozen");
      EXPECT_THAT(error([&] { engine.gradient(frozen); }), HasSubstr("h.1.frozen is frozen"));
      const ParameterId bias = engine.parameter_id("h.1.bias");
      EXPECT_THAT(error([&] { engine.grad_ready(bias); }), HasSubstr("h.1.bias"));
      std::vector<float> values(7);
      EXPECT_ERROR(engine.contribute(bias, view_of(std::span(values))),
                   "gradient of h.1.bias: got 7 elements, expected 97");
      values.resize(static_cast<size_t>(engine.numel(frozen)));
      EXPECT_ERROR(engine.contribute(frozen, view_of(std::span(values))), "h.1.frozen is frozen");
      engine.gradient(bias);
      EXPECT_ERROR(engine.set_batch_rule({.boundary = true}), "within a micro-step");
      engine.grad_ready(bias);
      EXPECT_THAT(error([&] { engine.gradient(bias); }), HasSubstr("h.1.bias"));
      engine.reduce_gradients();
      EXPECT_ERROR(engine.set_batch_rule({.accumulation_steps = 0}), "accumulation_steps: got 0");
    });
  }
}

TEST(EngineCalls, ReadingAReleasedParameterIsAnErrorNotGarbage) {
  run_engines({gathering_config(3), 1}, [](Engine& engine, Communicator&) {
    EXPECT_ERROR_OF(InternalError, engine.parameter(engine.parameter_id("h.0.weight")),
                    "outside gather and release of module h.0");
  });
}

// An exception on one rank ends the others' collectives instead of leaving them waiting.
TEST(Engine, AnExceptionOnOneRankEndsTheOthers) {
  std::string peer_message;
  EXPECT_ANY_THROW(run_engines({toy_config(2)}, [&](Engine& engine, Communicator& comm) {
    if (comm.rank() == 1) throw std::runtime_error("the data ran out");
    peer_message = error_of<CommError>([&] {
      ToyModel::micro_step(engine, comm.rank(), 0, 0);
      engine.step();
    });
    throw std::runtime_error("a peer failed");
  }));
  EXPECT_THAT(peer_message, HasSubstr("rank 1"));
}

// Counts the calls of abort, which does nothing.
struct AbortCounter final : testing::WrappedCommunicator {
  using WrappedCommunicator::WrappedCommunicator;
  void abort(std::string_view /*reason*/) noexcept override { ++aborts; }
  int aborts = 0;
};

TEST(Engine, AnExceptionFromBeforeAnEngineDoesNotEndTheJob) {
  run_ranks(1, [](Communicator& comm) {
    AbortCounter counter(comm);
    const auto device = make_cpu_device();
    const auto make_engine = [&] {
      return Engine::create(Config{}, *device, counter, ToyModel::specs(), ToyModel::groups());
    };
    const auto fails_beside = [](const auto& /*object*/) { throw NumericError("unwinds"); };
    // Uses an engine of its own when it ends, as an object that saves or measures something may.
    const auto at_end = [&](void*) { make_engine(); };
    EXPECT_THROW(fails_beside(std::shared_ptr<void>(nullptr, at_end)), NumericError);
    EXPECT_EQ(counter.aborts, 0);
    EXPECT_THROW(fails_beside(make_engine()), NumericError);
    EXPECT_EQ(counter.aborts, 1);
  });
}

// Full parameters in memory of a framework's, from a gather to the drop.
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
}  // namespace zerorun::testing
