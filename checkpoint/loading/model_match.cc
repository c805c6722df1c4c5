#include <fmt/ranges.h>

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "checkpoint/format/manifest.h"
#include "config/checks/suggest.h"
#include "core/check.h"
#include "core/joined.h"

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
  return joined(parameter.states, ", ", [&manifest](int index) {
    const StateSpec& spec = manifest.states[static_cast<size_t>(index)];
    const std::string block = spec.block > 1 ? fmt::format("/{}", spec.block) : std::string();
    return fmt::format("{} {}{}", spec.name, name_of(spec.dtype), block);
  });
}

// Names the difference of a parameter that both have; empty when it fits.
std::string difference_of(const Manifest& saved_model, const Parameter& saved,
                          const Manifest& our_model, const Parameter& ours) {
  if (saved.alias_of != ours.alias_of) {
    return fmt::format("{} is {}, in this model {}", ours.name, tied(saved), tied(ours));
  }
  if (saved.shape != ours.shape) {
    return fmt::format("{} has shape [{}], in this model [{}]", ours.name,
                       fmt::join(saved.shape, ","), fmt::join(ours.shape, ","));
  }
  if (saved.dtype != ours.dtype) {
    return fmt::format(
        "{} is in {}, in this model in {}: train it in the precision it was saved with", ours.name,
        name_of(saved.dtype), name_of(ours.dtype));
  }
  if (saved.trainable != ours.trainable) {
    return fmt::format("{} is {}, in this model {}", ours.name, trained(saved), trained(ours));
  }
  const std::string states = states_of(saved_model, saved);
  const std::string own = states_of(our_model, ours);
  if (states == own) return {};
  return fmt::format("optimizer states of {} are [{}], this optimizer's are [{}]", ours.name,
                     states, own);
}

// True for "model.h.0.weight" and "h.0.weight", as wrappers make of a name.
bool is_end_of(std::string_view end, std::string_view name) {
  return name.size() > end.size() && name.ends_with(end) &&
         name[name.size() - end.size() - 1] == '.';
}

std::string meant_by(const std::string& name, const std::vector<std::string>& candidates) {
  const std::string nearest = nearest_parameter(name, candidates);
  return nearest.empty() ? std::string() : fmt::format(" (nearest: {})", nearest);
}

}  // namespace

std::string nearest_parameter(const std::string& name, const std::vector<std::string>& candidates) {
  for (const std::string& candidate : candidates) {
    if (is_end_of(name, candidate) || is_end_of(candidate, name)) return candidate;
  }
  return nearest_name(name, candidates);
}

void check_same_model(const Manifest& saved, const Manifest& engine, std::string_view checkpoint,
                      bool strict) {
  constexpr size_t kShown = 20;
  std::vector<std::string> problems;  // the first of them
  size_t count = 0;
  const auto add = [&](const auto& describe) {
    if (count++ < kShown) problems.push_back(describe());
  };
  std::unordered_map<std::string_view, const Parameter*> unmatched;
  for (const Parameter& parameter : saved.parameters) unmatched[parameter.name] = &parameter;
  std::vector<std::string> only_ours;
  std::vector<std::string> only_saved;
  for (const Parameter& ours : engine.parameters) {
    const auto found = unmatched.find(ours.name);
    if (found == unmatched.end()) {
      only_ours.push_back(ours.name);
      continue;
    }
    std::string difference = difference_of(saved, *found->second, engine, ours);
    if (!difference.empty()) add([&] { return difference; });
    unmatched.erase(found);
  }
  for (const Parameter& parameter : saved.parameters) {
    if (unmatched.contains(parameter.name)) only_saved.push_back(parameter.name);
  }
  for (const std::string& name : strict ? only_ours : std::vector<std::string>()) {
    add([&] {
      return fmt::format("it has no parameter {}, which this model has{}", name,
                         meant_by(name, only_saved));
    });
  }
  for (const std::string& name : strict ? only_saved : std::vector<std::string>()) {
    add([&] {
      return fmt::format("it has the parameter {}, which this model lacks{}", name,
                         meant_by(name, only_ours));
    });
  }
  const size_t hidden = count - problems.size();
  if (saved.groups.size() != engine.groups.size()) {
    problems.push_back(fmt::format("it has {} parameter groups, this run {}", saved.groups.size(),
                                   engine.groups.size()));
  }
  if (problems.empty()) return;
  const std::string head =
      fmt::format("checkpoint {} does not fit this model ({} parameters; this model has {})",
                  checkpoint, saved.parameters.size(), engine.parameters.size());
  if (problems.size() == 1) fail<CheckpointError>("{}: {}", head, problems.front());
  fail<CheckpointError>("{}:\n  {}{}", head, fmt::join(problems, "\n  "),
                        hidden > 0 ? fmt::format("\n  and {} more", hidden) : std::string());
}

}  // namespace zerorun
