#include "zerorun/engine.h"

#include "os/host_limits.h"
#include "tests/zero/toy_run.h"
#include "tests/zero/wrapped_communicator.h"

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
      EXPECT_THAT(error_of<ConfigError>([&] { engine.parameter_id("nope"); }), HasSubstr("nope"));
      EXPECT_THAT(error_of<ConfigError>([&] { engine.module_id("nope"); }), HasSubstr("nope"));
      const auto error = [](const auto& call) { return error_of<InternalError>(call); };
      EXPECT_THAT(error([&] { engine.step(); }), HasSubstr("end_micro_step"));
      const ParameterId frozen = engine.parameter_id("h.1.frozen");
      EXPECT_THAT(error([&] { engine.gradient(frozen); }), HasSubstr("h.1.frozen is frozen"));
      const ParameterId bias = engine.parameter_id("h.1.bias");
      EXPECT_THAT(error([&] { engine.grad_ready(bias); }), HasSubstr("h.1.bias"));
      std::vector<float> values(7);
      EXPECT_THAT(error_of([&] { engine.contribute(bias, view_of(std::span(values))); }),
                  HasSubstr("gradient of h.1.bias: got 7 elements, expected 97"));
      values.resize(static_cast<size_t>(engine.numel(frozen)));
      EXPECT_THAT(error_of([&] { engine.contribute(frozen, view_of(std::span(values))); }),
                  HasSubstr("h.1.frozen is frozen"));
      engine.gradient(bias);
      EXPECT_THAT(error_of([&] { engine.set_batch_rule({.boundary = true}); }),
                  HasSubstr("within a micro-step"));
      engine.grad_ready(bias);
      EXPECT_THAT(error([&] { engine.gradient(bias); }), HasSubstr("h.1.bias"));
      engine.reduce_gradients();
      EXPECT_THAT(error_of([&] { engine.set_batch_rule({.accumulation_steps = 0}); }),
                  HasSubstr("accumulation_steps: got 0"));
    });
  }
}

TEST(EngineCalls, ReadingAReleasedParameterIsAnErrorNotGarbage) {
  run_engines({gathering_config(3), 1}, [](Engine& engine, Communicator&) {
    EXPECT_THAT(
        error_of<InternalError>([&] { engine.parameter(engine.parameter_id("h.0.weight")); }),
        HasSubstr("outside gather and release of module h.0"));
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
class AbortCounter final : public testing::WrappedCommunicator {
 public:
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

}  // namespace
}  // namespace zerorun::testing
