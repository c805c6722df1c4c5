#include "zero/partition/model_spec.h"

#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace zerorun {

namespace {

int64_t count_elements(const ParameterSpec& spec) {
  int64_t numel = 1;
  for (int64_t size : spec.shape) {
    if (size < 0) {
      fail<ConfigError>("parameter {}: shape [{}] has a negative size", spec.name,
                        fmt::join(spec.shape, ", "));
    }
    if (__builtin_mul_overflow(numel, size, &numel)) {
      fail<ConfigError>("parameter {}: shape [{}] has more than 2^63 elements", spec.name,
                        fmt::join(spec.shape, ", "));
    }
  }
  return numel;
}

// MuonStep refuses what it would update and is no matrix.
bool is_muon_matrix(const ParameterSpec& spec) {
  return spec.use_muon && spec.trainable && spec.alias_of.empty() && spec.shape.size() == 2;
}

}  // namespace

size_t heads_pattern_of(const ParameterSpec& spec, const OptimizerConfig& optimizer) {
  const auto& patterns = optimizer.muon_heads;
  if (!is_muon_matrix(spec)) return patterns.size();
  const auto found = std::find_if(patterns.begin(), patterns.end(), [&](const auto& pattern) {
    return fnmatch(pattern.first.c_str(), spec.name.c_str(), 0) == 0;
  });
  return static_cast<size_t>(found - patterns.begin());
}

std::vector<ParameterSpec> with_rules(std::vector<ParameterSpec> specs,
                                      const OptimizerConfig& optimizer, bool has_muon) {
  for (ParameterSpec& spec : specs) {
    spec.use_muon = spec.use_muon && has_muon;
    if (!is_muon_matrix(spec)) {
      spec.heads = 1;
      continue;
    }
    const size_t pattern = heads_pattern_of(spec, optimizer);
    if (pattern < optimizer.muon_heads.size()) spec.heads = optimizer.muon_heads[pattern].second;
    if (spec.heads > 1 && spec.outputs_are_columns) {
      fail<ConfigError>(
          "optimizer.params.muon_heads: got {} heads of {}, whose columns are the outputs "
          "(transformers' Conv1D), expected matrices whose rows are (nn.Linear): leave it out, and "
          "Muon updates it as one matrix",
          spec.heads, spec.name);
    }
    if (spec.heads < 1 || (spec.heads > 1 && spec.shape[0] % spec.heads != 0)) {
      fail<ConfigError>(
          "parameter {} has {} rows, which optimizer.params.muon_heads divides into {}: give a "
          "number of heads that divides them",
          spec.name, spec.shape[0], spec.heads);
    }
  }
  return specs;
}

ModelSpec::ModelSpec(std::vector<ParameterSpec> specs, size_t group_count)
    : specs_(std::move(specs)) {
  if (specs_.empty()) fail<ConfigError>("the model has no parameters");
  for (const ParameterSpec& spec : specs_) add(spec, group_count);
}

void ModelSpec::add(const ParameterSpec& spec, size_t group_count) {
  const auto id = static_cast<ParameterId>(numels_.size());
  if (spec.name.empty()) fail<ConfigError>("parameter {} has no name", id);
  if (!ids_.emplace(spec.name, id).second) {
    fail<ConfigError>("parameter {} occurs twice", spec.name);
  }
  if (spec.group < 0 || static_cast<size_t>(spec.group) >= group_count) {
    fail<ConfigError>("parameter {}: group {} does not exist, there are {}", spec.name, spec.group,
                      group_count);
  }
  if (spec.dtype && spec.trainable) {
    fail<ConfigError>(
        "parameter {} is {} and trainable: one that is trained has the engine's dtype", spec.name,
        name_of(*spec.dtype));
  }
  numels_.push_back(count_elements(spec));
  const auto [module, fresh] =
      module_ids_.emplace(spec.module, static_cast<ModuleId>(module_ids_.size()));
  if (fresh) uses_.push_back({module->second});
  modules_.push_back(module->second);
  owners_.push_back(id);
  if (spec.alias_of.empty()) return;

  const auto owner = ids_.find(spec.alias_of);
  if (owner == ids_.end() || owner->second == id) {
    fail<ConfigError>("parameter {} is tied to {}, which is not listed before it", spec.name,
                      spec.alias_of);
  }
  const ParameterSpec& target = specs_[static_cast<size_t>(owner->second)];
  if (!target.alias_of.empty()) {
    fail<ConfigError>("parameter {} is tied to {}, itself tied to {}: name {} directly", spec.name,
                      target.name, target.alias_of, target.alias_of);
  }
  if (target.shape != spec.shape || target.trainable != spec.trainable ||
      target.dtype != spec.dtype) {
    fail<ConfigError>("parameter {} [{}] is tied to {} [{}]: shape, trainable and dtype must agree",
                      spec.name, fmt::join(spec.shape, ", "), target.name,
                      fmt::join(target.shape, ", "));
  }
  owners_.back() = owner->second;
  std::vector<ModuleId>& uses = uses_[static_cast<size_t>(module->second)];
  const ModuleId home = modules_[static_cast<size_t>(owner->second)];
  if (std::find(uses.begin(), uses.end(), home) == uses.end()) uses.push_back(home);
}

ParameterId ModelSpec::id(std::string_view name) const {
  const auto found = ids_.find(name);
  if (found == ids_.end()) fail<ConfigError>("the model has no parameter named {}", name);
  return found->second;
}

ModuleId ModelSpec::module_id(std::string_view name) const {
  const auto found = module_ids_.find(name);
  if (found == module_ids_.end()) fail<ConfigError>("the model has no module named {}", name);
  return found->second;
}

}  // namespace zerorun
