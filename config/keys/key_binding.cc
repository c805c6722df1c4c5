#include "config/keys/key_binding.h"

#include <fmt/format.h>

#include "core/check.h"

namespace zerorun {

namespace {

int64_t checked_integer(const JsonNode& node) {
  const std::optional<int64_t> value = as_integer(node);
  ZR_CHECK(value, "{} was bound to an integer without being checked", to_short_text(node));
  return *value;
}

}  // namespace

void read_value(const JsonNode& node, bool& out) { out = node.boolean; }
void read_value(const JsonNode& node, int& out) { out = static_cast<int>(checked_integer(node)); }
void read_value(const JsonNode& node, int64_t& out) { out = checked_integer(node); }
void read_value(const JsonNode& node, float& out) { out = static_cast<float>(node.number); }
void read_value(const JsonNode& node, double& out) { out = node.number; }
void read_value(const JsonNode& node, std::string& out) { out = node.text; }

void read_value(const JsonNode& node, std::optional<std::string>& out) {
  out.reset();
  if (node.kind != JsonNode::Kind::null) out = node.text;
}

void read_value(const JsonNode& node, std::optional<bool>& out) {
  if (node.kind == JsonNode::Kind::null) {
    out.reset();
  } else {
    out = node.boolean;
  }
}

void read_value(const JsonNode& node, std::optional<DType>& out) {
  if (node.kind == JsonNode::Kind::null) {
    out.reset();
  } else {
    out = parse_dtype(node.text);
  }
}

void read_value(const JsonNode& node, std::optional<int64_t>& out) {
  if (node.kind == JsonNode::Kind::null) {
    out.reset();
  } else {
    out = checked_integer(node);
  }
}

void read_value(const JsonNode& node, std::vector<double>& out) {
  out.clear();
  if (node.kind == JsonNode::Kind::array) {
    for (const JsonNode& item : node.children) out.push_back(item.number);
  } else if (node.kind != JsonNode::Kind::null) {
    out.push_back(node.number);
  }
}

// What is no integer is 0, which check_muon reports.
void read_value(const JsonNode& node, std::vector<std::pair<std::string, int64_t>>& out) {
  out.clear();
  for (const JsonNode& item : node.children)
    out.emplace_back(item.key, as_integer(item).value_or(0));
}

void read_value(const JsonNode& node, GradientReduction& out) {
  out = node.text == "sum" ? GradientReduction::sum : GradientReduction::mean;
}

void read_value(const JsonNode& node, OffloadDevice& out) {
  out = node.text == "cpu"    ? OffloadDevice::cpu
        : node.text == "nvme" ? OffloadDevice::nvme
                              : OffloadDevice::none;
}

void read_value(const JsonNode& node, WarmupShape& out) {
  out = node.text == "linear" ? WarmupShape::linear : WarmupShape::log;
}

void read_value(const JsonNode& node, DecayShape& out) {
  out = node.text == "linear"   ? DecayShape::linear
        : node.text == "1-sqrt" ? DecayShape::one_minus_sqrt
                                : DecayShape::cosine;
}

std::string write_value(bool value) { return value ? "true" : "false"; }
std::string write_value(int value) { return std::to_string(value); }
std::string write_value(int64_t value) { return std::to_string(value); }
// The shortest text that reads back as the same fp32 number.
std::string write_value(float value) { return fmt::format("{}", value); }
std::string write_value(double value) { return to_text(value); }
std::string write_value(const std::string& value) { return to_text(std::string_view(value)); }

std::string write_value(const std::optional<std::string>& value) {
  return value ? to_text(std::string_view(*value)) : "null";
}

std::string write_value(const std::optional<bool>& value) {
  return value ? write_value(*value) : "null";
}

std::string write_value(const std::optional<DType>& value) {
  return value ? to_text(name_of(*value)) : "null";
}

std::string write_value(const std::optional<int64_t>& value) {
  return value ? std::to_string(*value) : "null";
}

std::string write_value(const std::vector<double>& value) {
  if (value.empty()) return "null";
  if (value.size() == 1) return to_text(value[0]);
  std::string out;
  for (const double item : value) out += (out.empty() ? "[" : ",") + to_text(item);
  return out + "]";
}

std::string write_value(const std::vector<std::pair<std::string, int64_t>>& value) {
  if (value.empty()) return "null";
  std::string out;
  for (const auto& [name, number] : value) {
    out += fmt::format("{}{}:{}", out.empty() ? "{" : ",", to_text(std::string_view(name)), number);
  }
  return out + "}";
}

std::string write_value(GradientReduction value) {
  return value == GradientReduction::sum ? R"("sum")" : R"("mean")";
}

std::string write_value(OffloadDevice value) {
  switch (value) {
    case OffloadDevice::none:
      return R"("none")";
    case OffloadDevice::cpu:
      return R"("cpu")";
    case OffloadDevice::nvme:
      return R"("nvme")";
  }
  return "null";
}

std::string write_value(WarmupShape value) {
  return value == WarmupShape::linear ? R"("linear")" : R"("log")";
}

std::string write_value(DecayShape value) {
  switch (value) {
    case DecayShape::linear:
      return R"("linear")";
    case DecayShape::cosine:
      return R"("cosine")";
    case DecayShape::one_minus_sqrt:
      return R"("1-sqrt")";
  }
  return "null";
}

}  // namespace zerorun
