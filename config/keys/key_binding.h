#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/json/json_tree.h"
#include "zerorun/config.h"

namespace zerorun {

// Copies the value of a key, which was already checked against its KeySpec, into a Config and back.
struct KeyBinding {
  void (*set)(Config& config, const JsonNode& value) = nullptr;
  std::string (*get)(const Config& config) = nullptr;  // JSON text
};

void read_value(const JsonNode& node, bool& out);
void read_value(const JsonNode& node, int& out);
void read_value(const JsonNode& node, int64_t& out);
void read_value(const JsonNode& node, float& out);
void read_value(const JsonNode& node, double& out);
void read_value(const JsonNode& node, std::string& out);
void read_value(const JsonNode& node, std::optional<bool>& out);
void read_value(const JsonNode& node, std::optional<std::string>& out);
void read_value(const JsonNode& node, std::optional<DType>& out);
void read_value(const JsonNode& node, std::optional<int64_t>& out);
void read_value(const JsonNode& node, std::vector<double>& out);  // a number or an array of numbers
void read_value(const JsonNode& node, std::vector<std::pair<std::string, int64_t>>& out);
void read_value(const JsonNode& node, GradientReduction& out);
void read_value(const JsonNode& node, OffloadDevice& out);
void read_value(const JsonNode& node, WarmupShape& out);
void read_value(const JsonNode& node, DecayShape& out);

std::string write_value(bool value);
std::string write_value(int value);
std::string write_value(int64_t value);
std::string write_value(float value);
std::string write_value(double value);
std::string write_value(const std::string& value);
std::string write_value(const std::optional<bool>& value);
std::string write_value(const std::optional<std::string>& value);
std::string write_value(const std::optional<DType>& value);
std::string write_value(const std::optional<int64_t>& value);
std::string write_value(const std::vector<double>& value);
std::string write_value(const std::vector<std::pair<std::string, int64_t>>& value);
std::string write_value(GradientReduction value);
std::string write_value(OffloadDevice value);
std::string write_value(WarmupShape value);
std::string write_value(DecayShape value);

// follow<&Config::zero, &ZeroConfig::stage>(config) is config.zero.stage.
template <auto First, auto... Rest, typename Object>
constexpr auto& follow(Object& object) {
  if constexpr (sizeof...(Rest) == 0) {
    return object.*First;
  } else {
    return follow<Rest...>(object.*First);
  }
}

// Returns the binding to a member of Config or of one of its parts.
template <auto... Members>
constexpr KeyBinding bind_member() {
  return {
      .set = [](Config& config,
                const JsonNode& value) { read_value(value, follow<Members...>(config)); },
      .get = [](const Config& config) { return write_value(follow<Members...>(config)); },
  };
}

// Like bind_member, for a number for which 0 means the default.
template <auto... Members>
constexpr KeyBinding bind_unless_zero() {
  KeyBinding binding = bind_member<Members...>();
  binding.set = [](Config& config, const JsonNode& value) {
    if (value.number != 0) read_value(value, follow<Members...>(config));
  };
  return binding;
}

}  // namespace zerorun
