#include "checkpoint/model_match.h"

#include <fmt/ranges.h>

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/check.h"

namespace zerorun {

namespace {

using Parameter = Manifest::Parameter;

std::string_view trained(const Parameter& parameter) {
  return parameter.trainable ? "trainable" : "frozen";
}

std::string tied(const Parameter& parameter) {
  return parameter.alias_of.empty() ? "untied" : "tied to " + parameter.alias_of;
}

// "master fp32, exp_avg uint8"
std::string states_of(const Manifest& manifest, const Parameter& parameter) {
  std::vector<std::string> states;
  for (const int index : parameter.states) {
    const StateSpec& spec = manifest.states[static_cast<size_t>(index)];
    states.push_back(fmt::format("{} {}", spec.name, name_of(spec.dtype)));
    if (spec.block > 1) states.back() += fmt::format("/{}", spec.block);
  }
  return fmt::format("{}", fmt::join(states, ", "));
}

void check_same_parameter(const Parameter& saved, const Parameter& ours, std::string_view where) {
  if (saved.alias_of != ours.alias_of) {
    fail<CheckpointError>("{} has {} {}, this model {}", where, ours.name, tied(saved), tied(ours));
  }
  if (saved.shape != ours.shape) {
    fail<CheckpointError>("{} has {} of shape [{}], this model [{}]", where, ours.name,
                          fmt::join(saved.shape, ","), fmt::join(ours.shape, ","));
  }
  if (saved.dtype != ours.dtype) {
    fail<CheckpointError>(
        "{} has {} in {}, this model in {}: train it in the precision it was saved with", where,
        ours.name, name_of(saved.dtype), name_of(ours.dtype));
  }
  if (saved.trainable != ours.trainable) {
    fail<CheckpointError>("{} has {} {}, this model {}", where, ours.name, trained(saved),
                          trained(ours));
  }
}

}  // namespace

void check_same_model(const Manifest& saved, const Manifest& engine, std::string_view checkpoint,
                      bool strict) {
  const std::string where = fmt::format("checkpoint {}", checkpoint);
  std::unordered_map<std::string_view, const Parameter*> unmatched;
  for (const Parameter& parameter : saved.parameters) unmatched[parameter.name] = &parameter;
  for (const Parameter& ours : engine.parameters) {
    const auto found = unmatched.find(ours.name);
    if (found == unmatched.end()) {
      if (!strict) continue;
      fail<CheckpointError>(
          "{} has no parameter {}, which this model has ({} parameters; the "
          "checkpoint has {})",
          where, ours.name, engine.parameters.size(), saved.parameters.size());
    }
    check_same_parameter(*found->second, ours, where);
    const std::string theirs = states_of(saved, *found->second);
    if (theirs != states_of(engine, ours)) {
      fail<CheckpointError>("{} has optimizer states [{}] of {}, this optimizer [{}]", where,
                            theirs, ours.name, states_of(engine, ours));
    }
    unmatched.erase(found);
  }
  for (const Parameter& parameter : saved.parameters) {
    if (!strict || !unmatched.contains(parameter.name)) continue;
    fail<CheckpointError>(
        "{} has the parameter {}, which this model lacks ({} parameters; the "
        "checkpoint has {})",
        where, parameter.name, engine.parameters.size(), saved.parameters.size());
  }
  if (saved.groups.size() != engine.groups.size()) {
    fail<CheckpointError>("{} has {} parameter groups, this run {}", where, saved.groups.size(),
                          engine.groups.size());
  }
}

}  // namespace zerorun
