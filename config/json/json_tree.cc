#include "config/json/json_tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "core/printable.h"

namespace zerorun {

namespace {

using Kind = JsonNode::Kind;

constexpr size_t kMaxShownBytes = 60;
constexpr size_t kMaxShownItems = 8;

}  // namespace

const JsonNode* find_member(const JsonNode& object, std::string_view key) {
  for (const JsonNode& child : object.children) {
    if (child.key == key) return &child;
  }
  return nullptr;
}

std::optional<int64_t> as_integer(const JsonNode& node) {
  if (node.kind == Kind::integer) return node.integer;
  constexpr double kLimit = 0x1p63;
  if (node.kind != Kind::number || std::trunc(node.number) != node.number ||
      std::abs(node.number) >= kLimit) {
    return std::nullopt;
  }
  return static_cast<int64_t>(node.number);
}

std::string to_text(double number) {
  if (std::isnan(number)) return "NaN";
  if (std::isinf(number)) return number < 0 ? "-Infinity" : "Infinity";
  return fmt::format("{}", number);
}

std::string to_text(std::string_view string) {
  return nlohmann::json(string).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string to_text(JsonPosition where) { return fmt::format("{}:{}", where.line, where.column); }

std::string to_text(const JsonNode& node) {
  switch (node.kind) {
    case Kind::null:
      return "null";
    case Kind::boolean:
      return node.boolean ? "true" : "false";
    case Kind::integer:
      return std::to_string(node.integer);
    case Kind::number: {
      const std::optional<int64_t> integer = as_integer(node);
      return integer ? std::to_string(*integer) : to_text(node.number);
    }
    case Kind::string:
      return to_text(std::string_view(node.text));
    case Kind::array:
    case Kind::object:
      break;
  }
  const bool is_object = node.kind == Kind::object;
  std::string out(1, is_object ? '{' : '[');
  for (const JsonNode& child : node.children) {
    if (out.size() > 1) out += ',';
    if (is_object) out += to_text(std::string_view(child.key)) + ':';
    out += to_text(child);
  }
  return out + (is_object ? '}' : ']');
}

std::string to_short_text(const JsonNode& node) {
  switch (node.kind) {
    case Kind::array:
      return node.children.size() <= kMaxShownItems
                 ? printable(to_text(node), kMaxShownBytes)
                 : fmt::format("an array of {}", node.children.size());
    case Kind::object:
      return node.children.empty() ? "{}" : "an object";
    case Kind::string:
      return printable(to_text(std::string_view(node.text).substr(0, kMaxShownBytes))) +
             (node.text.size() > kMaxShownBytes ? "..." : "");
    default:
      return to_text(node);
  }
}

void extend_pointer(std::string& pointer, std::string_view key) {
  pointer += '/';
  for (const char c : key) {
    if (c == '~') {
      pointer += "~0";
    } else if (c == '/') {
      pointer += "~1";
    } else {
      pointer += c;
    }
  }
}

std::string append_pointer(std::string_view pointer, std::string_view key) {
  std::string out(pointer);
  extend_pointer(out, key);
  return out;
}

void ConfigProblems::throw_if_any() const {
  if (empty()) return;
  std::vector<Problem> sorted = problems_;
  std::ranges::stable_sort(sorted, {}, &Problem::where);
  std::string text = fmt::format("{}: {} problem{}", source_, count_, count_ == 1 ? "" : "s");
  for (size_t i = 0; i < sorted.size(); ++i) {
    const Problem& problem = sorted[i];
    text += fmt::format("\n  {}. {}", i + 1,
                        problem.pointer.empty() ? "top level" : printable(problem.pointer));
    if (problem.where.line > 0) text += fmt::format(" ({})", to_text(problem.where));
    text += fmt::format(": {}", problem.text);
  }
  if (count_ > sorted.size()) text += fmt::format("\n  ... and {} more", count_ - sorted.size());
  throw ConfigError(text);
}

}  // namespace zerorun
