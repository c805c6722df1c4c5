#include "config/key_binding.h"

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

void read_value(const JsonNode& node, std::optional<DType>& out) {
  if (node.kind == JsonNode::Kind::null) {
    out.reset();
  } else {
    out = parse_dtype(node.text);
  }
}

std::string write_value(bool value) { return value ? "true" : "false"; }
std::string write_value(int value) { return std::to_string(value); }
std::string write_value(int64_t value) { return std::to_string(value); }
// The shortest text that reads back as the same fp32 number.
std::string write_value(float value) { return fmt::format("{}", value); }
std::string write_value(double value) { return to_text(value); }
std::string write_value(const std::string& value) { return to_text(std::string_view(value)); }

std::string write_value(const std::optional<DType>& value) {
  return value ? to_text(name_of(*value)) : "null";
}

}  // namespace zerorun
