#include "train/model/parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/observers.h"
#include "train/model/philox.h"

namespace zerorun::train {

namespace {

constexpr int kDecayed = 0;
constexpr int kNotDecayed = 1;
constexpr float kDeviation = 0.02F;

}  // namespace

std::vector<ParameterSpec> parameter_specs(const GptConfig& config) {
  std::vector<ParameterSpec> specs;
  std::string module = "embeddings";
  std::string prefix = "transformer.";
  const auto add = [&](std::string_view name, std::vector<int64_t> shape, bool use_muon = false) {
    ParameterSpec& spec = specs.emplace_back();
    spec.name = fmt::format("{}{}", prefix, name);
    spec.group = shape.size() > 1 ? kDecayed : kNotDecayed;
    spec.shape = std::move(shape);
    spec.module = module;
    spec.use_muon = spec.outputs_are_columns = use_muon;
  };
  // Muon is for hidden matrices only, not for the embeddings.
  const auto add_linear = [&](std::string_view name, int64_t in, int64_t out) {
    add(fmt::format("{}.weight", name), {in, out}, /*use_muon=*/true);
    add(fmt::format("{}.bias", name), {out});
  };
  const auto add_norm = [&](std::string_view name) {
    add(fmt::format("{}.weight", name), {config.width});
    add(fmt::format("{}.bias", name), {config.width});
  };
  add("wte.weight", {config.vocabulary, config.width});
  add("wpe.weight", {config.positions, config.width});
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    module = fmt::format("h.{}", layer);
    prefix = fmt::format("transformer.h.{}.", layer);
    add_norm("ln_1");
    add_linear("attn.c_attn", config.width, 3 * config.width);
    add_linear("attn.c_proj", config.width, config.width);
    add_norm("ln_2");
    add_linear("mlp.c_fc", config.width, config.inner);
    add_linear("mlp.c_proj", config.inner, config.width);
  }
  module = "ln_f";
  prefix = "transformer.";
  add_norm("ln_f");
  return specs;
}

std::vector<ParameterGroup> parameter_groups(float lr, float weight_decay) {
  return {{"matrices", lr, weight_decay}, {"vectors", lr, 0.0F}};
}

Initializer::Initializer(const GptConfig& config, uint64_t seed) : seed_(seed) {
  const float projection = kDeviation / std::sqrt(2.0F * static_cast<float>(config.layers));
  for (const ParameterSpec& spec : parameter_specs(config)) {
    Rule rule;
    if (spec.shape.size() > 1) {
      rule.deviation = spec.name.ends_with("c_proj.weight") ? projection : kDeviation;
    } else {
      rule.constant = spec.name.ends_with("weight") ? 1.0F : 0.0F;
    }
    rules_.push_back(rule);
  }
}

void Initializer::fill(ParameterId id, int64_t begin, std::span<float> out) const {
  const Rule& rule = rules_.at(static_cast<size_t>(id));
  if (rule.deviation == 0.0F) {
    std::fill(out.begin(), out.end(), rule.constant);
    return;
  }
  const RandomStream stream{seed_, RandomStream::Purpose::parameters, static_cast<uint32_t>(id)};
  random_normal(stream, begin, rule.deviation, out);
}

void EngineParameters::gather(ModuleId module) {
  engine_.gather(module);
  if (timeline_ != nullptr) begun_.push_back({steady_seconds()});
}

GradientView EngineParameters::gradient(ParameterId id) {
  if (!begun_.empty()) begun_.back().backward = true;
  return engine_.gradient(id);
}

void EngineParameters::release(ModuleId module) {
  if (!begun_.empty()) {
    const auto of_module = [&](const ParameterSpec& spec) {
      return engine_.module_id(spec.module) == module;
    };
    const auto found = std::ranges::find_if(engine_.parameters(), of_module);
    timeline_->add(begun_.back().backward ? "backward" : "forward", found->module,
                   begun_.back().begin_s, steady_seconds());
    begun_.pop_back();
  }
  engine_.release(module);
}

}  // namespace zerorun::train
