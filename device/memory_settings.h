#pragma once

namespace zerorun {

// What an engine has set that bears on the memory of its device.
struct MemorySettings {
  int stage = 0;
  bool offload_optimizer = false;
  bool offload_param = false;
};

// A device whose errors say which settings make room. It does not advise what is in force.
class SettingsAdviser {
 public:
  virtual void use_settings(const MemorySettings& settings) = 0;

 protected:
  ~SettingsAdviser() = default;
};

}  // namespace zerorun
