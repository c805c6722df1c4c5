#include "config/type_params.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "config/value_check.h"

namespace zerorun {

namespace {

// "/optimizer" for "/optimizer/params/lr".
std::string_view block_of(const KeySpec& spec) {
  return spec.parent().substr(0, spec.parent().rfind('/'));
}

std::vector<std::string_view> names_used_by(const KeyTable& table, std::string_view block,
                                            std::string_view type) {
  std::vector<std::string_view> names;
  for (const KeySpec* spec : table.children(block)) {
    if (spec->status == KeyStatus::works && spec->is_used_by(type)) names.push_back(spec->name());
  }
  return names;
}

void report_unused(const KeyTable& table, const GivenKey& key, std::string_view type,
                   ConfigProblems& problems) {
  if (type.empty()) {
    problems.add(key.pointer, key.node->key_where, "asks for something, but {}/type is missing",
                 block_of(*key.spec));
  } else {
    problems.add(key.pointer, key.node->key_where, "{} does not take it; it takes {}", type,
                 fmt::join(names_used_by(table, key.spec->parent(), type), ", "));
  }
}

void check_required(const GivenKeys& keys, const KeySpec& spec, std::string_view type,
                    ConfigProblems& problems) {
  const auto found = keys.find(spec.pointer);
  if (found != keys.end() && found->second.node->kind != JsonNode::Kind::null) return;
  const auto type_key = keys.find(fmt::format("{}/type", block_of(spec)));
  const JsonNode& place =
      found != keys.end() ? *found->second.node : *type_key->second.node;  // a type was given
  problems.add(spec.pointer, place.where, "missing; {} needs it, expected {}", type,
               expected_value(spec));
}

}  // namespace

std::optional<std::string_view> type_for(const KeyTable& table, const GivenKeys& keys,
                                         const KeySpec& spec) {
  if (spec.used_by.empty() && spec.type_fallbacks.empty()) return "";
  const KeySpec* type = table.find(fmt::format("{}/type", block_of(spec)));
  if (type == nullptr) return "";
  if (const auto given = keys.find(type->pointer); given != keys.end()) {
    if (!given->second.is_valid) return std::nullopt;
    if (const JsonNode* value = given_value(given->second)) return value->text;
  }
  if (type->fallback == "null") return "";
  return type->fallback.substr(1, type->fallback.size() - 2);  // without the quotes
}

void check_type_params(const KeyTable& table, const GivenKeys& keys, ConfigProblems& problems) {
  for (const KeySpec* spec : table.keys()) {
    if (spec->used_by.empty()) continue;
    const std::optional<std::string_view> type = type_for(table, keys, *spec);
    if (!type) continue;
    if (!spec->is_used_by(*type)) {
      const auto given = keys.find(spec->pointer);
      if (given != keys.end() && given_value(given->second) != nullptr) {
        report_unused(table, given->second, *type, problems);
      }
    } else if (spec->is_required) {
      check_required(keys, *spec, *type, problems);
    }
  }
}

}  // namespace zerorun
