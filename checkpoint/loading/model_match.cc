#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "checkpoint/format/manifest.h"
#include "config/checks/suggest.h"
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

// Names the difference of a parameter that both have; empty when it fits.
std::string difference_of(const Parameter& saved, const Parameter& ours) {
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
  return {};
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

// The differences between two lists of parameters.
class Comparison {
 public:
  Comparison(const Manifest& saved, const Manifest& engine) : saved_(saved), engine_(engine) {
    for (const Parameter& parameter : saved.parameters) unmatched_[parameter.name] = &parameter;
    for (const Parameter& ours : engine.parameters) {
      const auto found = unmatched_.find(ours.name);
      if (found == unmatched_.end()) {
        only_ours_.push_back(ours.name);
        continue;
      }
      compare(*found->second, ours);
      unmatched_.erase(found);
    }
    for (const Parameter& parameter : saved.parameters) {
      if (unmatched_.contains(parameter.name)) only_saved_.push_back(parameter.name);
    }
  }

  // Counts them and names the first. `strict`: parameters that only one of the two has
  // count.
  size_t count(bool strict) const {
    return differences_.size() + (strict ? only_ours_.size() + only_saved_.size() : 0);
  }
  std::vector<std::string> first(size_t most, bool strict) const {
    std::vector<std::string> all(
        differences_.begin(),
        differences_.begin() + static_cast<std::ptrdiff_t>(std::min(most, differences_.size())));
    if (!strict) return all;
    for (const std::string& name : only_ours_) {
      if (all.size() == most) return all;
      all.push_back(fmt::format("it has no parameter {}, which this model has{}", name,
                                meant_by(name, only_saved_)));
    }
    for (const std::string& name : only_saved_) {
      if (all.size() == most) return all;
      all.push_back(fmt::format("it has the parameter {}, which this model lacks{}", name,
                                meant_by(name, only_ours_)));
    }
    return all;
  }

 private:
  void compare(const Parameter& saved, const Parameter& ours) {
    std::string difference = difference_of(saved, ours);
    const std::string states = states_of(saved_, saved);
    const std::string own = states_of(engine_, ours);
    if (difference.empty() && states != own) {
      difference = fmt::format("optimizer states of {} are [{}], this optimizer's are [{}]",
                               ours.name, states, own);
    }
    if (!difference.empty()) differences_.push_back(std::move(difference));
  }

  const Manifest& saved_;
  const Manifest& engine_;
  std::unordered_map<std::string_view, const Parameter*> unmatched_;
  std::vector<std::string> only_ours_;
  std::vector<std::string> only_saved_;
  std::vector<std::string> differences_;
};

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
  const Comparison comparison(saved, engine);
  std::vector<std::string> problems = comparison.first(kShown, strict);
  const size_t hidden = comparison.count(strict) - problems.size();
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
