#include "config/keys/key_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "config/keys/key_rows.h"
#include "core/check.h"
#include "core/joined.h"

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

void read_value(const JsonNode& node, DType& out) { out = parse_dtype(node.text); }
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
  for (const JsonNode& item : node.children) {
    out.emplace_back(item.key, as_integer(item).value_or(0));
  }
}

std::string write_value(bool value) { return value ? "true" : "false"; }
std::string write_value(int64_t value) { return std::to_string(value); }
// The shortest text that reads back as the same fp32 number.
std::string write_value(float value) { return fmt::format("{}", value); }
std::string write_value(double value) { return to_text(value); }
std::string write_value(const std::string& value) { return to_text(std::string_view(value)); }

std::string write_value(DType value) { return to_text(name_of(value)); }
std::string write_value(const std::vector<double>& value) {
  if (value.empty()) return "null";
  if (value.size() == 1) return to_text(value[0]);
  return fmt::format("[{}]", joined(value, ",", [](double item) { return to_text(item); }));
}

std::string write_value(const std::vector<std::pair<std::string, int64_t>>& value) {
  if (value.empty()) return "null";
  const auto member = [](const auto& item) {
    return fmt::format("{}:{}", write_value(item.first), item.second);
  };
  return fmt::format("{{{}}}", joined(value, ",", member));
}

std::vector<std::string_view> split_choices(std::string_view choices) {
  std::vector<std::string_view> out;
  while (!choices.empty()) {
    const size_t end = choices.find('|');
    out.push_back(choices.substr(0, end));
    choices = end == std::string_view::npos ? std::string_view() : choices.substr(end + 1);
  }
  return out;
}

bool KeySpec::is_used_by(std::string_view type_name) const {
  const std::vector<std::string_view> types = split_choices(used_by);
  return types.empty() || std::ranges::find(types, type_name) != types.end();
}

std::string_view KeySpec::fallback_for(std::string_view type_name) const {
  for (const std::string_view entry : split_choices(type_fallbacks)) {
    const size_t equals = entry.find('=');
    if (entry.substr(0, equals) == type_name) return entry.substr(equals + 1);
  }
  return fallback;
}

KeyTable::KeyTable() {
  using namespace keys;
  for (const auto part : {core_keys(), optimizer_keys(), precision_keys(), zero_keys(),
                          offload_keys(), checkpoint_keys(), other_keys(), zerorun_keys()}) {
    KeySpec block;
    for (const KeySpec& row : part) {
      add(row, block);
      if (row.is_block()) block = specs_.back();
    }
  }
}

void KeyTable::add(KeySpec row, const KeySpec& block) {
  const auto absolute = [this](std::string_view base, std::string_view name) -> std::string_view {
    if (name.empty() || name.starts_with('/')) return name;
    return texts_.emplace_back(fmt::format("{}/{}", base, name));
  };
  const bool belongs = !row.pointer.starts_with('/');
  row.pointer = absolute(block.pointer, row.pointer);
  row.gate_of_keys = absolute(row.pointer, row.gate_of_keys);
  const bool may_act = row.status != KeyStatus::no_effect && row.status != KeyStatus::always_on &&
                       row.status != KeyStatus::deprecated;
  if (belongs && may_act && row.gate.empty() && row.pointer != block.gate_of_keys) {
    row.gate = block.gate_of_keys;
  }
  const KeySpec& spec = specs_.emplace_back(row);
  keys_.push_back(&spec);
  by_parent_[spec.parent()].push_back(&spec);
  const auto index = [&](std::string pointer) {
    const bool is_new = by_pointer_.emplace(std::move(pointer), &spec).second;
    ZR_CHECK(is_new, "configuration key {} is in the table twice", spec.pointer);
  };
  index(std::string(spec.pointer));
  if (!spec.alias.empty()) index(fmt::format("{}/{}", spec.parent(), spec.alias));
}

const KeySpec* KeyTable::find(std::string_view pointer) const {
  const auto found = by_pointer_.find(pointer);
  return found == by_pointer_.end() ? nullptr : found->second;
}

const KeySpec& KeyTable::current(const KeySpec& spec) const {
  if (spec.status != KeyStatus::deprecated) return spec;
  const KeySpec* replacement = find(spec.note);
  ZR_CHECK(replacement != nullptr, "{} is replaced by {}, which is not in the table", spec.pointer,
           spec.note);
  return *replacement;
}

std::span<const KeySpec* const> KeyTable::children(std::string_view block) const {
  const auto found = by_parent_.find(block);
  if (found == by_parent_.end()) return {};
  return found->second;
}

const KeyTable& key_table() {
  static const KeyTable table;
  return table;
}

}  // namespace zerorun
