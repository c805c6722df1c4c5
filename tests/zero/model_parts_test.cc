// Engines that hold parts of one model step together, and experts are those of some ranks.

#include "tests/zero/toy_run.h"

namespace zerorun::testing::model_parts {
namespace {

constexpr int kRanks = 4;
constexpr int kParts = 2;
constexpr int64_t kSteps = 3;

Config config_of(int stage, DType dtype = DType::fp32) {
  Config config = toy_config(stage, dtype);
  config.gradient_clipping = 0;  // the other part would show in the factor
  return config;
}

// Neighbours hold different parts; rank 2 * i + p is rank i of those that hold part p.
std::shared_ptr<Communicator> part_of(Communicator& job) {
  const int part = job.rank() % kParts;
  return job.split(part, job.rank() / kParts, fmt::format("part {}", part));
}

struct Outcome {
  std::map<int, uint64_t> hashes;  // by part
  std::vector<double> norms;
  std::vector<int64_t> skipped;  // of the ranks
};

// `counted`: whether part 1 counts in norms. Rank 3 overflows in step `overflow_at`.
Outcome train_parts(const Config& config, bool counted, int64_t overflow_at = -1) {
  Outcome outcome;
  std::mutex mutex;
  run_ranks(kRanks, [&](Communicator& job) {
    const auto device = make_cpu_device();
    const auto comm = part_of(job);
    const int part = job.rank() % kParts;
    std::vector<ParameterSpec> specs = toy_specs();
    for (ParameterSpec& spec : specs) spec.counted = part == 0 || counted;
    const auto engine = Engine::create(config, *device, *comm, specs, ToyModel::groups(),
                                       {.job = &job, .part = part, .part_count = kParts});
    toy_initialize(*engine);
    std::vector<double> norms;
    for (int64_t step = 0; step < kSteps; ++step) {
      const bool overflow = step == overflow_at && job.rank() == kRanks - 1;
      norms.push_back(toy_step(*engine, *comm, config, step, overflow).grad_norm);
    }
    const uint64_t hash = engine->states().parameter_hash();
    const std::lock_guard lock(mutex);
    outcome.hashes[part] = hash;
    if (job.rank() == 0) outcome.norms = norms;
    outcome.skipped.push_back(engine->states().progress().skipped_steps);
  });
  return outcome;
}

TEST(ModelParts, HaveOneNormInWhichReplicasCountOnce) {
  for (int stage = 0; stage <= 3; ++stage) {
    const Config config = config_of(stage);
    const ToyOutcome alone = toy_train({config, kRanks / kParts}, kSteps);
    for (const bool counted : {true, false}) {
      const Outcome both = train_parts(config, counted);
      EXPECT_EQ(both.hashes.at(0), alone.hash) << "stage " << stage;
      EXPECT_EQ(both.hashes.at(1), alone.hash) << "stage " << stage;
      for (size_t step = 0; step < alone.norms.size(); ++step) {
        const double expected = alone.norms[step] * (counted ? std::sqrt(2.0) : 1.0);
        EXPECT_NEAR(both.norms.at(step), expected, 1e-12 * expected) << "stage " << stage;
      }
    }
  }
}

TEST(ModelParts, SkipAStepTogether) {
  const Outcome outcome = train_parts(config_of(2, DType::fp16), true, 1);
  EXPECT_THAT(outcome.skipped, ::testing::Each(1));
}

// The values of the expert and of a parameter of all ranks, as rank `reader` finds them. An expert
// of its own is on every second rank; without, one of all ranks is used by those alone.
std::map<std::string, std::vector<float>> train_expert(const Config& config, bool own, int reader) {
  std::map<std::string, std::vector<float>> values;
  run_ranks(kRanks, [&](Communicator& comm) {
    const auto device = make_cpu_device();
    const auto half = part_of(comm);
    std::vector<ParameterSpec> specs = toy_specs();
    EngineGroups others;
    if (own) {
      others.parts = {half.get()};
      for (ParameterSpec& spec : specs) spec.ranks = spec.module == "expert" ? 1 : 0;
      ParameterSpec elsewhere = {"expert.of.others", {23, 29}, "elsewhere", 1};
      elsewhere.ranks = kElsewhere;
      specs.push_back(elsewhere);
    }
    const auto engine = Engine::create(config, *device, comm, specs, ToyModel::groups(), others);
    toy_initialize(*engine);
    const auto uses = [&](const std::string& module, int rank) {
      if (module == "elsewhere") return false;
      return own || module != "expert" || rank % kParts == reader % kParts;
    };
    for (int64_t step = 0; step < kSteps; ++step) {
      ToyModel::micro_step(*engine, comm.rank(), 0, step, uses, 1.0F);
      engine->step();
    }
    engine->states().parameter_hash();  // replicas are the same
    if (own) {
      const ParameterId other = engine->parameter_id("expert.of.others");
      EXPECT_TRUE(engine->states().state_intervals(other).empty());
    }
    for (const char* name : {"expert.weight", "h.0.weight"}) {
      const std::vector<float> found = ToyModel::full_values(*engine, engine->parameter_id(name));
      if (comm.rank() == reader) values[name] = found;
    }
  });
  return values;
}

TEST(Experts, AreReducedOverTheRanksThatHaveThem) {
  for (const int reader : {0, 3}) {
    const auto expected = train_expert(config_of(0), false, reader);
    for (int stage = 0; stage <= 3; ++stage) {
      EXPECT_EQ(train_expert(config_of(stage), true, reader), expected) << "stage " << stage;
    }
  }
}

// The errors of the ranks of a job, where those of a part have its matrices, "part.0.weight" or
// "part.1.weight", and an expert each.
std::vector<std::string> errors_of_heads(const Config& config, bool trainable) {
  std::vector<std::string> errors(kRanks);
  run_ranks(kRanks, [&](Communicator& job) {
    const auto device = make_cpu_device();
    const auto comm = part_of(job);
    const int part = job.rank() % kParts;
    const auto own = comm->split(comm->rank(), 0, "expert");
    std::vector<ParameterSpec> specs = {{.name = fmt::format("part.{}.weight", part),
                                         .shape = {12, 4},
                                         .module = "part",
                                         .trainable = trainable,
                                         .use_muon = true},
                                        {.name = fmt::format("expert.{}.weight", comm->rank()),
                                         .shape = {8, 4},
                                         .module = "expert",
                                         .use_muon = true,
                                         .ranks = 1}};
    errors[static_cast<size_t>(job.rank())] = error_of<ConfigError>([&] {
      Engine::create(config, *device, *comm, specs, ToyModel::groups(),
                     {.job = &job, .part = part, .part_count = kParts, .parts = {own.get()}});
    });
  });
  return errors;
}

TEST(ModelParts, HaveHeadsThatOnlySomeRanksKnow) {
  for (int stage = 0; stage <= 3; ++stage) {
    Config config = config_of(stage);
    config.optimizer.type = "Muon";
    config.optimizer.muon_heads = {{"part.1.*", 3}, {"expert.0.*", 4}};
    EXPECT_THAT(errors_of_heads(config, true), ::testing::Each("")) << "stage " << stage;
    EXPECT_THAT(errors_of_heads(config, false),  // nothing of what is frozen is divided
                ::testing::Each(HasSubstr("'part.1.*' matches no matrix that Muon updates")));
    config.optimizer.muon_heads.emplace_back("part.2.*", 3);
    EXPECT_THAT(errors_of_heads(config, true),
                ::testing::Each(HasSubstr("'part.2.*' matches no matrix that Muon updates")));
  }
}

TEST(ModelParts, OfDifferentSettingsAreRefusedByThem) {
  std::vector<std::string> errors(2);
  run_ranks(2, [&](Communicator& comm) {
    const auto device = make_cpu_device();
    Config config = config_of(2);
    config.optimizer.type = "Muon";
    if (comm.rank() == 1) config.optimizer.muon_heads = {{"h.0.*", 37}, {"expert.*", 1}};
    errors[static_cast<size_t>(comm.rank())] = error_of<ConfigError>(
        [&] { Engine::create(config, *device, comm, toy_specs(), ToyModel::groups()); });
  });
  const std::string same = "this rank has ns_steps 5, ns_method \"gram\", muon_heads ";
  EXPECT_THAT(errors[0], HasSubstr(same + "{}"));
  EXPECT_THAT(errors[1], HasSubstr(same + R"({"h.0.*": 37, "expert.*": 1})"));
}

TEST(ModelParts, NeedGroupsThatFitTogether) {
  const auto refusal = [](const Config& config, EngineGroups others, int ranks) {
    std::string text;
    run_ranks(1, [&](Communicator& comm) {
      const auto device = make_cpu_device();
      std::vector<ParameterSpec> specs = toy_specs();
      specs.front().ranks = ranks;
      specs.front().divided = specs.front().use_muon = true;
      if (others.part_count == 1) others.parts = {&comm};
      text = error_of<ConfigError>(
          [&] { Engine::create(config, *device, comm, specs, ToyModel::groups(), others); });
    });
    return text;
  };
  EXPECT_THAT(refusal(config_of(1), {.part = 1, .part_count = 2}, 0),
              HasSubstr("part 1 of a model of 2 parts with 1 ranks each: the job has 1 ranks"));
  EXPECT_THAT(refusal(config_of(1), {}, 2), HasSubstr("embed.weight: ranks is 2"));
  Config lamb = config_of(1);
  lamb.optimizer.type = "Lamb";
  EXPECT_THAT(refusal(lamb, {}, 1), HasSubstr("nothing says which ranks hold its other parts"));
  Config muon = config_of(1);
  muon.optimizer.type = "Muon";
  EXPECT_THAT(refusal(muon, {}, 1), HasSubstr("and Muon updates whole matrices"));
  Config grouped = config_of(1);
  grouped.zero.shard_group_size = 1;
  EXPECT_THAT(refusal(grouped, {}, 1), HasSubstr("mics_shard_size): not for a model"));
}

}  // namespace
}  // namespace zerorun::testing::model_parts
