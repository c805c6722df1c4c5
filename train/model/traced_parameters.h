#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "core/observers.h"
#include "train/model/parameters.h"
#include "zerorun/timeline.h"

namespace zerorun::train {

// Adds spans to a timeline for the time that the model works on each module, from its gather to its
// release. On a GPU these are the times at which the host submits the work.
class TracedParameters final : public EngineParameters {
 public:
  explicit TracedParameters(Engine& engine) : EngineParameters(engine) {
    for (const ParameterSpec& spec : engine.parameters()) {
      const auto module = static_cast<size_t>(engine.module_id(spec.module));
      modules_.resize(std::max(modules_.size(), module + 1));
      modules_[module] = spec.module;
    }
  }

  // Sets the timeline; null for none. Must not be called between gather and release.
  void use_timeline(Timeline* timeline) { timeline_ = timeline; }

  void gather(ModuleId module) override {
    EngineParameters::gather(module);
    if (timeline_ != nullptr) begun_.push_back({module, steady_seconds(), false});
  }
  GradientView gradient(ParameterId id) override {
    if (!begun_.empty()) begun_.back().backward = true;
    return EngineParameters::gradient(id);
  }
  void release(ModuleId module) override {
    if (!begun_.empty()) {
      const Begun begun = begun_.back();
      begun_.pop_back();
      timeline_->add(begun.backward ? "backward" : "forward",
                     modules_[static_cast<size_t>(begun.module)], begun.begin_s, steady_seconds());
    }
    EngineParameters::release(module);
  }

 private:
  struct Begun {
    ModuleId module = 0;
    double begin_s = 0;
    bool backward = false;  // backward has requested gradients
  };

  std::vector<std::string> modules_;  // names
  Timeline* timeline_ = nullptr;
  std::vector<Begun> begun_;  // nested
};

}  // namespace zerorun::train
