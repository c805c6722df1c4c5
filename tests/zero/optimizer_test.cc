// Every optimizer, and those that are the caller's.
#include <nlohmann/json.hpp>

#include "tests/zero/toy_run.h"

namespace zerorun::testing::optimizer {
namespace {

class EveryOptimizer : public ::testing::TestWithParam<Rule> {};

// Bytes of optimizer memory per element, from its definition.
double bytes_per_element(const Rule& rule, DType dtype, bool use_muon) {
  const double master = dtype == DType::fp32 || rule.master_is_param ? 0 : 4;
  const auto state = static_cast<double>(size_of(rule.state_dtype));
  if (rule.type == "AdamW8bit") return master + 2 * (1 + 4.0 / 256);
  if (rule.type == "SGD") return master + (rule.momentum > 0 ? state : 0);
  if (rule.type == "Adagrad" || rule.type == "Lion") return master + state;
  if (rule.type == "Muon" && use_muon) return master + state;
  return master + 2 * state;
}

TEST_P(EveryOptimizer, HoldsTheBytesOfItsStates) {
  for (const auto& [dtype, stage] : each(kFp32Bf16, std::array{0, 2})) {
    std::vector<ParameterSpec> model;
    for (int i = 0; i < 20; ++i) {
      const std::string name = "h." + std::to_string(i);
      model.push_back({name + ".weight", {128, 96}, name, 0, true, "", true});
      model.push_back({name + ".table", {128, 96}, name, 0, true, "", false});
    }
    Config config = toy_config(stage, dtype);
    GetParam().set(config);
    config.zero.reduce_bucket_size = 1 << 20;
    run_engines({config, 2, {}, model}, [&](Engine& engine, Communicator&) {
      const double elements = 20 * 128 * 96 / (stage == 0 ? 1.0 : 2.0);
      const double expected = elements * (bytes_per_element(GetParam(), dtype, true) +
                                          bytes_per_element(GetParam(), dtype, false));
      EXPECT_NEAR(static_cast<double>(live_bytes(engine, MemoryCategory::optimizer)), expected,
                  0.01 * expected);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, EveryOptimizer, ::testing::ValuesIn(every_rule()), name_of_rule);

TEST(MuonMatrices, MustBeMatrices) {
  ToyJob job{toy_config(0), 1};  // AdamW has no use for the mark
  job.specs[4].use_muon = true;
  EXPECT_EQ(refusal(job), "");
  job.config.optimizer.type = "Muon";
  EXPECT_THAT(refusal(job),
              HasSubstr("h.1.weight: use_muon is for matrices, this has 1 dimensions"));
}

Config config_of(int stage, const std::string& optimizer) {
  Config config = toy_config(stage);
  config.optimizer.type = optimizer;
  return config;
}

TEST(CallerOptimizer, UpdatesShardsAsTheEnginesOwnWould) {
  for (const auto& [stage, on_host] : each(kStages, kEither)) {
    if (on_host && stage == 0) continue;
    Config config = on_host ? offloaded(base_config(stage), 0.5) : base_config(stage);
    config.precision.grad_accum_dtype = DType::fp32;  // as a caller's optimizer gets them
    ToyJob job{.config = config, .groups = {{"a", 0.25F, 0.0F}, {"b", 0.25F, 0.0F}}};
    const auto train = [&](const std::string& type, const Engine::ShardUpdate& update) {
      job.config.optimizer.type = type;
      return train_by(job, 3, [&](Engine& engine, Communicator& comm, int64_t step) {
        ToyModel::micro_step(engine, comm.rank(), 0, step);
        return update ? engine.step(update) : engine.step();
      });
    };
    EXPECT_EQ(train(std::string(kExternalOptimizer), descent(0.25F)), train("SGD", {}))
        << "stage " << stage << ", half on the host " << on_host;
  }
}

TEST(CallerOptimizer, AnErrorOnOneRankIsAnErrorOnAllAndTheStepDoesNotCount) {
  for (int stage = 0; stage <= 3; ++stage) {
    const Config config = config_of(stage, std::string(kExternalOptimizer));
    run_engines({config}, [&](Engine& engine, Communicator& comm) {
      const auto step = [&](const Engine::ShardUpdate& update) {
        ToyModel::micro_step(engine, comm.rank(), 0, 0);
        engine.step(update);
      };
      const auto fail_on_rank_1 = [&](std::span<const StateInterval> /*parts*/) {
        if (comm.rank() == 1) throw std::out_of_range("no state for this shard");
      };
      if (comm.rank() == 1) {
        EXPECT_THROW(step(fail_on_rank_1), std::out_of_range);  // its own error, as it was
      } else {
        EXPECT_ERROR(step(fail_on_rank_1), "rank 1 of 2: no state for this shard");
      }
      EXPECT_EQ(engine.states().progress().step_count, 0);
      step(descent(0.01F));
      EXPECT_EQ(engine.states().progress().step_count, 1);
      engine.states().parameter_hash();  // throws when replicas differ
    });
  }
}

// Elements that all_gather moves to refresh the parameters, in units of the model's size.
double gathered_by_refresh(const std::string& optimizer) {
  const ToyJob job{config_of(0, optimizer), 2, {}, {{"w", {1 << 20}, "m"}}};
  return result_of(job, [&](Engine& engine, Communicator& comm) {
    const CommStats before = comm.stats();
    engine.states().refresh_from_masters();
    return static_cast<double>(since(before, comm)[Collective::all_gather].elements) / (1 << 20);
  });
}

TEST(CallerOptimizer, ARefreshAtStage0GathersNothingTwice) {
  EXPECT_EQ(gathered_by_refresh("AdamW"), 3);  // master and states; parameters are cast from it
  EXPECT_EQ(gathered_by_refresh(std::string(kExternalOptimizer)), 1);  // parameters
}

using nlohmann::json;

Config config_of(const json& run) {
  const json& settings = run["settings"];
  Config config;
  config.batch.accumulation_steps = 1;
  config.gradient_clipping = 0.0;
  config.zero.stage = 2;
  OptimizerConfig& optimizer = config.optimizer;
  optimizer.type = run["type"];
  optimizer.adam_w_mode = run["type"] != "Adam";
  if (settings.contains("betas")) {
    optimizer.beta1 = settings["betas"][0];
    optimizer.beta2 = settings["betas"][1];
  }
  optimizer.eps = settings.value("eps", optimizer.eps);
  optimizer.bias_correction = settings.value("bias_correction", true);
  optimizer.momentum = settings.value("momentum", 0.0);
  optimizer.dampening = settings.value("dampening", 0.0);
  optimizer.nesterov = settings.value("nesterov", false);
  optimizer.lr_decay = settings.value("lr_decay", 0.0);
  optimizer.eps_inside_sqrt = settings.value("eps_inside_sqrt", false);
  optimizer.min_coeff = settings.value("min_coeff", optimizer.min_coeff);
  optimizer.max_coeff = settings.value("max_coeff", optimizer.max_coeff);
  return config;
}

// The parameters after all steps of the run, of two ranks whose gradients both are the run's.
std::vector<std::vector<float>> train(const json& run) {
  std::vector<ParameterSpec> specs;
  for (const json& shape : run["shapes"]) {
    specs.push_back({.name = "p" + std::to_string(specs.size()),
                     .shape = shape,
                     .module = "m",
                     .use_muon = run["type"] == "Muon"});
  }
  const ParameterGroup group{"golden", run["settings"]["lr"], run["settings"]["weight_decay"]};
  const ToyJob job{config_of(run), 2, {}, specs, {group}};
  return result_of(job, [&](Engine& engine, Communicator&) {
    engine.initialize_parameters([&](ParameterId id, int64_t begin, std::span<float> out) {
      const std::vector<float> values = run["initial"][static_cast<size_t>(id)];
      std::copy_n(values.begin() + begin, out.size(), out.begin());
    });
    for (const json& step : run["gradients"]) {
      for (const ParameterId id : parameters_of(engine)) {
        const std::vector<float> gradient = step[static_cast<size_t>(id)];
        std::copy(gradient.begin(), gradient.end(), engine.gradient(id).view.as<float>());
        engine.grad_ready(id);
      }
      engine.end_micro_step();
      engine.step();
    }
    std::vector<std::vector<float>> final;
    for (const ParameterId id : parameters_of(engine)) {
      final.push_back(ToyModel::floats_of(engine.parameter(id)));
    }
    return final;
  });
}

// Relative to the larger of the value and the typical size of the tensor: terms cancel.
void expect_near(const std::vector<float>& got, const std::vector<double>& expected,
                 double tolerance, double slack) {
  ASSERT_EQ(got.size(), expected.size());
  double squares = 0;
  for (const double value : expected) squares += value * value;
  const double typical = std::sqrt(squares / static_cast<double>(expected.size()));
  for (size_t i = 0; i < got.size(); ++i) {
    const double size = std::max(std::abs(expected[i]), typical);
    EXPECT_NEAR(got[i], expected[i], tolerance * size + slack) << "element " << i;
  }
}

TEST(Golden, EveryRuleMatchesItsReference) {
  std::ifstream file(test_paths::tests() + "/zero/data/rules_golden.json");
  const json golden = json::parse(file).at("rules");
  ASSERT_GE(golden.size(), 70U);
  for (const json& run : golden) {
    SCOPED_TRACE(run["type"].get<std::string>() + " " + run["settings"].dump());
    const auto final = train(run);
    ASSERT_EQ(final.size(), run["final"].size());
    // Newton-Schulz multiplies what is small in a direction, its roundings too, by up to 3.4^5.
    const double way =
        run["settings"]["lr"].get<double>() * static_cast<double>(run["gradients"].size());
    const double slack = run["type"] == "Muon" ? 5e-6 * way : 0.0;
    for (size_t id = 0; id < final.size(); ++id) {
      expect_near(final[id], run["final"][id], 1e-6, slack);
    }
  }
}

}  // namespace
}  // namespace zerorun::testing::optimizer
