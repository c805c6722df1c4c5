#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "zerorun/engine.h"

namespace zerorun {

// Sets ParameterSpec::heads as the optimizer's patterns say; clears it and use_muon of all
// parameters unless the optimizer is Muon. Throws ConfigError that names the parameter if heads do
// not divide its rows, or if these are not its outputs.
std::vector<ParameterSpec> with_rules(std::vector<ParameterSpec> specs,
                                      const OptimizerConfig& optimizer, bool has_muon);
// The index of the first pattern of muon_heads that matches a matrix which Muon updates; the number
// of patterns if none does.
size_t heads_pattern_of(const ParameterSpec& spec, const OptimizerConfig& optimizer);

// What Muon orthogonalizes of a parameter: so many matrices, one after the other. Filters of a 2D
// convolution are one, with a row for each output; other parameters of more than two dimensions
// have those of the last two.
struct MuonMatrices {
  int64_t count = 1;
  int64_t rows = 0;
  int64_t cols = 0;
};
inline MuonMatrices muon_matrices(const ParameterSpec& spec) {
  const std::vector<int64_t>& shape = spec.shape;
  if (shape.size() < 2) return {};  // MuonStep refuses it
  if (shape.size() == 4) return {1, shape[0], shape[1] * shape[2] * shape[3]};
  MuonMatrices found{spec.heads, shape[shape.size() - 2] / spec.heads, shape.back()};
  for (size_t i = 0; i + 2 < shape.size(); ++i) found.count *= shape[i];
  return found;
}

// The validated parameter list of a model, with lookups by name and with module numbers.
class ModelSpec {
 public:
  // Throws ConfigError that names the parameter for specs that contradict each other.
  ModelSpec(std::vector<ParameterSpec> specs, size_t group_count);

  std::span<const ParameterSpec> specs() const { return specs_; }
  const ParameterSpec& spec(ParameterId id) const { return specs_.at(static_cast<size_t>(id)); }
  std::span<const int64_t> numels() const { return numels_; }
  std::span<const ModuleId> modules() const { return modules_; }  // by parameter
  int module_count() const { return static_cast<int>(module_ids_.size()); }
  ParameterId id(std::string_view name) const;
  ModuleId module_id(std::string_view name) const;
  // The parameter that owns the memory of `id`: `id` itself, or the parameter to which it is tied.
  ParameterId owner(ParameterId id) const { return owners_.at(static_cast<size_t>(id)); }
  // The modules whose parameters `module` uses: itself, and those that own its tied parameters.
  const std::vector<ModuleId>& uses(ModuleId module) const {
    return uses_.at(static_cast<size_t>(module));
  }

 private:
  void add(const ParameterSpec& spec, size_t group_count);

  std::vector<ParameterSpec> specs_;
  std::vector<int64_t> numels_;
  std::vector<ModuleId> modules_;
  std::vector<ParameterId> owners_;
  std::vector<std::vector<ModuleId>> uses_;
  std::map<std::string, ParameterId, std::less<>> ids_;
  std::map<std::string, ModuleId, std::less<>> module_ids_;
};

}  // namespace zerorun
