#include <nlohmann/json.hpp>

#include "tests/zero/toy_run.h"

namespace zerorun::testing {
namespace {

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

// The parameters after all steps of the run, by an engine of two ranks whose gradients both are the
// run's.
std::vector<std::vector<float>> train(const json& run) {
  std::vector<std::vector<float>> final;
  std::vector<ParameterSpec> specs;
  for (const json& shape : run["shapes"]) {
    specs.push_back({.name = "p" + std::to_string(specs.size()),
                     .shape = shape,
                     .module = "m",
                     .use_muon = run["type"] == "Muon"});
  }
  const ParameterGroup group{"golden", run["settings"]["lr"], run["settings"]["weight_decay"]};
  run_engines({config_of(run), 2, {}, specs, {group}}, [&](Engine& engine, Communicator& comm) {
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
    if (comm.rank() != 0) return;
    for (const ParameterId id : parameters_of(engine)) {
      final.push_back(ToyModel::floats_of(engine.parameter(id)));
    }
  });
  return final;
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
}  // namespace zerorun::testing
