#include "zerorun/engine.h"

#include "os/host_limits.h"
#include "tests/zero/toy_run.h"
#include "tests/zero/wrapped_communicator.h"

namespace zerorun::testing {
namespace {

std::string create_with(std::vector<ParameterSpec> specs) {
  return refusal({.ranks = 1, .specs = std::move(specs), .groups = {ParameterGroup{}}});
}

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
  EXPECT_THAT(create_with({}), HasSubstr("no parameters"));
  EXPECT_THAT(create_with({{"a", {2}, "m", 0, true, ""}, {"a", {2}, "m", 0, true, ""}}),
              HasSubstr("a occurs twice"));
  EXPECT_THAT(create_with({{"a", {-1}, "m", 0, true, ""}}), HasSubstr("negative"));
  EXPECT_THAT(create_with({{"a", {1LL << 40, 1LL << 40}, "m", 0, true, ""}}), HasSubstr("2^63"));
  EXPECT_THAT(create_with({{"a", {1}, "m", 3, true, ""}}), HasSubstr("group 3"));
  EXPECT_THAT(create_with({{"a", {1}, "m", 0, true, "b"}}), HasSubstr("not listed before"));
  EXPECT_THAT(create_with({{"a", {2}, "m", 0, true, ""}, {"b", {3}, "m", 0, true, "a"}}),
              HasSubstr("shape"));
  std::vector<ParameterSpec> packed = {{"a", {2}, "m"}};
  packed[0].dtype = DType::uint8;
  EXPECT_THAT(create_with(packed), HasSubstr("a is uint8 and trainable"));
  packed[0].trainable = false;
  packed.push_back({"b", {2}, "m", 0, false, "a"});
  EXPECT_THAT(create_with(packed), HasSubstr("dtype must agree"));
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

class EngineCalls : public ::testing::TestWithParam<int> {
 protected:
  void with_engine(const std::function<void(Engine&)>& body) {
    run_engines({gathering_config(GetParam()), 1},
                [&](Engine& engine, Communicator&) { body(engine); });
  }
};

TEST_P(EngineCalls, OutOfOrderNameTheParameter) {
  with_engine([](Engine& engine) {
    EXPECT_THAT(error_of<ConfigError>([&] { engine.parameter_id("nope"); }), HasSubstr("nope"));
    EXPECT_THAT(error_of<ConfigError>([&] { engine.module_id("nope"); }), HasSubstr("nope"));
    EXPECT_THAT(error_of<InternalError>([&] { engine.step(); }), HasSubstr("end_micro_step"));
    const ParameterId frozen = engine.parameter_id("h.1.frozen");
    EXPECT_THAT(error_of<InternalError>([&] { engine.gradient(frozen); }),
                HasSubstr("h.1.frozen is frozen"));
    const ParameterId bias = engine.parameter_id("h.1.bias");
    EXPECT_THAT(error_of<InternalError>([&] { engine.grad_ready(bias); }), HasSubstr("h.1.bias"));
    engine.gradient(bias);
    engine.grad_ready(bias);
    EXPECT_THAT(error_of<InternalError>([&] { engine.gradient(bias); }), HasSubstr("h.1.bias"));
  });
}

TEST_P(EngineCalls, GradientSaysWhetherToOverwriteOrAdd) {
  with_engine([](Engine& engine) {
    const ParameterId tied = engine.parameter_id("head.weight");
    const ParameterId owner = engine.parameter_id("embed.weight");
    EXPECT_FALSE(engine.gradient(tied).accumulate);
    EXPECT_TRUE(engine.gradient(owner).accumulate);
    EXPECT_EQ(engine.gradient(owner).view.data, engine.gradient(tied).view.data);
  });
}

TEST_P(EngineCalls, TiedParametersAreOneMemoryInBothModules) {
  with_engine([](Engine& engine) {
    engine.gather(engine.module_id("head"));
    const TensorView tied = engine.parameter(engine.parameter_id("head.weight"));
    EXPECT_EQ(tied.data, engine.parameter(engine.parameter_id("embed.weight")).data);
    EXPECT_EQ(tied.as<float>()[3], ToyModel::initial(engine.parameter_id("embed.weight"), 3));
    engine.release(engine.module_id("head"));
  });
}

INSTANTIATE_TEST_SUITE_P(Stages, EngineCalls, ::testing::Range(0, 4));

TEST(Engine, ReadingAReleasedParameterIsAnErrorNotGarbage) {
  run_engines({gathering_config(3), 1}, [](Engine& engine, Communicator&) {
    EXPECT_THAT(
        error_of<InternalError>([&] { engine.parameter(engine.parameter_id("h.0.weight")); }),
        HasSubstr("outside gather and release of module h.0"));
  });
}

// By parameter: its value, master and states, each in full on every rank.
using FullStates = std::vector<std::vector<std::vector<float>>>;

FullStates read_states(Engine& engine, Communicator& comm) {
  FullStates full(engine.parameters().size());
  for (size_t id = 0; id < full.size(); ++id) {
    const auto numel = static_cast<size_t>(engine.numel(static_cast<ParameterId>(id)));
    full[id].assign(2 + engine.states().state_specs(0).size(), std::vector<float>(numel));
  }
  for (const StateInterval& part : engine.states().state_intervals()) {
    auto& tensors = full[static_cast<size_t>(part.parameter)];
    for (int64_t i = 0; i < part.numel; ++i) {
      const auto at = static_cast<size_t>(part.begin + i);
      tensors[0][at] = ToyModel::load(part.param, i);
      if (part.master.data != nullptr) tensors[1][at] = part.master.as<float>()[i];
      for (size_t s = 0; s < part.states.size(); ++s) {
        tensors[2 + s][at] = part.states[s].as<float>()[i];
      }
    }
  }
  for (auto& tensors : full) {
    for (std::vector<float>& tensor : tensors) {
      const TensorView view = view_of(std::span<float>(tensor));
      comm.all_reduce(view, view, ReduceOp::sum, Output::overwrite, engine.device().inline_stream(),
                      "states");
    }
  }
  return full;
}

void write_states(Engine& engine, const FullStates& full) {
  for (const StateInterval& part : engine.states().state_intervals()) {
    const auto& tensors = full[static_cast<size_t>(part.parameter)];
    for (int64_t i = 0; i < part.numel; ++i) {
      const auto at = static_cast<size_t>(part.begin + i);
      ToyModel::store(part.param, i, tensors[0][at]);
      if (part.master.data != nullptr) part.master.as<float>()[i] = tensors[1][at];
      for (size_t s = 0; s < part.states.size(); ++s) {
        part.states[s].as<float>()[i] = tensors[2 + s][at];
      }
    }
  }
  engine.states().refresh_from_masters();
}

std::unique_ptr<Engine> make_engine(int stage, Device& device, Communicator& comm) {
  const Config config = toy_config(stage);
  return Engine::create(config, device, comm, ToyModel::specs(), ToyModel::groups());
}

// A resumed engine continues with the same bits, whatever stage wrote the states.
TEST(Engine, StateIntervalsCarryEverythingAStepNeeds) {
  for (int from_stage = 0; from_stage <= 3; ++from_stage) {
    for (int to_stage = 0; to_stage <= 3; ++to_stage) {
      run_ranks(2, [&](Communicator& comm) {
        const auto device = make_cpu_device();
        const auto original = make_engine(from_stage, *device, comm);
        const auto copy = make_engine(to_stage, *device, comm);
        toy_initialize(*original);
        ToyModel::micro_step(*original, comm.rank(), 0, 0);
        original->step();
        write_states(*copy, read_states(*original, comm));
        copy->states().set_progress(original->states().progress());
        EXPECT_EQ(original->states().parameter_hash(), copy->states().parameter_hash());
        for (Engine* engine : {original.get(), copy.get()}) {
          ToyModel::micro_step(*engine, comm.rank(), 0, 1);
          engine->step();
        }
        EXPECT_EQ(original->states().parameter_hash(), copy->states().parameter_hash())
            << "from stage " << from_stage << " to " << to_stage;
      });
    }
  }
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

// Uses an engine of its own when it ends, as an object that saves or measures something may.
class UsesAnEngineAtItsEnd {
 public:
  explicit UsesAnEngineAtItsEnd(Communicator& comm) : comm_(comm) {}
  UsesAnEngineAtItsEnd(const UsesAnEngineAtItsEnd&) = delete;
  UsesAnEngineAtItsEnd& operator=(const UsesAnEngineAtItsEnd&) = delete;
  ~UsesAnEngineAtItsEnd() {
    const auto device = make_cpu_device();
    Engine::create(Config{}, *device, comm_, ToyModel::specs(), ToyModel::groups());
  }

 private:
  Communicator& comm_;
};

TEST(Engine, AnExceptionFromBeforeAnEngineDoesNotEndTheJob) {
  run_ranks(1, [](Communicator& comm) {
    AbortCounter counter(comm);
    const auto fails_beside = [](const auto& /*object*/) { throw NumericError("unwinds"); };
    EXPECT_THROW(fails_beside(UsesAnEngineAtItsEnd(counter)), NumericError);
    EXPECT_EQ(counter.aborts, 0);
    const auto device = make_cpu_device();
    EXPECT_THROW(fails_beside(Engine::create(Config{}, *device, counter, ToyModel::specs(),
                                             ToyModel::groups())),
                 NumericError);
    EXPECT_EQ(counter.aborts, 1);
  });
}

}  // namespace
}  // namespace zerorun::testing
