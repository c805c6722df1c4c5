#include "train/model/parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/parallel.h"
#include "train/model/philox.h"

namespace zerorun::train {

namespace {

constexpr int kDecayed = 0;
constexpr int kNotDecayed = 1;
constexpr float kDeviation = 0.02F;
constexpr int64_t kGrain = 1 << 14;  // consecutive values per thread

// Collects the parameters of one module.
class ModuleSpecs {
 public:
  ModuleSpecs(std::vector<ParameterSpec>& specs, std::string module, std::string prefix)
      : specs_(specs), module_(std::move(module)), prefix_(std::move(prefix)) {}

  void add(std::string_view name, std::vector<int64_t> shape) {
    ParameterSpec spec;
    spec.name = fmt::format("{}{}", prefix_, name);
    spec.group = shape.size() > 1 ? kDecayed : kNotDecayed;
    spec.shape = std::move(shape);
    spec.module = module_;
    specs_.push_back(std::move(spec));
  }
  void add_linear(std::string_view name, int64_t in, int64_t out) {
    add(fmt::format("{}.weight", name), {in, out});
    specs_.back().use_muon = true;  // hidden matrices only: not the embeddings
    add(fmt::format("{}.bias", name), {out});
  }
  void add_norm(std::string_view name, int64_t width) {
    add(fmt::format("{}.weight", name), {width});
    add(fmt::format("{}.bias", name), {width});
  }

 private:
  std::vector<ParameterSpec>& specs_;
  std::string module_;
  std::string prefix_;
};

}  // namespace

std::vector<ParameterSpec> parameter_specs(const GptConfig& config) {
  std::vector<ParameterSpec> specs;
  ModuleSpecs embeddings(specs, "embeddings", "transformer.");
  embeddings.add("wte.weight", {config.vocabulary, config.width});
  embeddings.add("wpe.weight", {config.positions, config.width});
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    ModuleSpecs block(specs, fmt::format("h.{}", layer), fmt::format("transformer.h.{}.", layer));
    block.add_norm("ln_1", config.width);
    block.add_linear("attn.c_attn", config.width, 3 * config.width);
    block.add_linear("attn.c_proj", config.width, config.width);
    block.add_norm("ln_2", config.width);
    block.add_linear("mlp.c_fc", config.width, config.inner);
    block.add_linear("mlp.c_proj", config.inner, config.width);
  }
  ModuleSpecs(specs, "ln_f", "transformer.").add_norm("ln_f", config.width);
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
  parallel_for(std::ssize(out), kGrain, [&](int64_t from, int64_t to) {
    const auto part = out.subspan(static_cast<size_t>(from), static_cast<size_t>(to - from));
    random_normal(stream, begin + from, rule.deviation, part);
  });
}

}  // namespace zerorun::train
