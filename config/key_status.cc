#include "config/key_status.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/check.h"
#include "zerorun/version.h"

namespace zerorun {

namespace {

using Kind = JsonNode::Kind;

bool is_off(const JsonNode& object) {
  const JsonNode* enabled = find_member(object, "enabled");
  if (enabled == nullptr) return object.children.empty();
  return (enabled->kind == Kind::boolean && !enabled->boolean) || enabled->text == "auto";
}

void report_unsupported(const GivenKey& key, const KeySpec& meant, ConfigProblems& problems) {
  const std::string support = meant.status == KeyStatus::removed
                                  ? "supported neither here nor by DeepSpeed 0.19"
                                  : fmt::format("not supported yet by zerorun {}", ZERORUN_VERSION);
  std::string advice =
      key.spec->fallback == "null" ? "" : fmt::format("; expected {}", key.spec->fallback);
  if (!meant.note.empty()) {
    advice += fmt::format("; {}", meant.note);
  } else if (advice.empty()) {
    advice = "; remove it";
  }
  problems.add(key.pointer, key.node->where, "got {}, {}{}", to_short_text(*key.node), support,
               advice);
}

void check_deprecated(const KeyTable& table, const GivenKeys& keys, const GivenKey& key,
                      ConfigProblems& problems, std::vector<std::string>& warnings) {
  const KeySpec& replacement = table.current(*key.spec);
  if (const auto both = keys.find(replacement.pointer); both != keys.end()) {
    problems.add(key.pointer, key.node->key_where,
                 "replaced by {}, which is given too, at {}:{}; remove this one",
                 both->second.pointer, both->second.node->key_where.line,
                 both->second.node->key_where.column);
  } else if (replacement.is_unsupported() && asks_for_something(key)) {
    report_unsupported(key, replacement, problems);
  } else {
    warnings.push_back(fmt::format("{} ({}:{}) is deprecated; use {}", key.pointer,
                                   key.node->key_where.line, key.node->key_where.column,
                                   replacement.pointer));
  }
}

}  // namespace

bool asks_for_something(const GivenKey& key) {
  const JsonNode* value = given_value(key);
  if (value == nullptr) return false;
  if (value->kind == Kind::object) return !is_off(*value);
  return to_text(*value) != key.spec->fallback;
}

bool is_without_effect(const GivenKey& key) {
  if (key.spec->status == KeyStatus::no_effect) return asks_for_something(key);
  return key.spec->status == KeyStatus::always_on && asks_for_something(key) && !key.node->boolean;
}

void check_statuses(const KeyTable& table, const GivenKeys& keys, ConfigProblems& problems,
                    std::vector<std::string>& warnings) {
  std::vector<std::string_view> without_effect;
  for (const auto& [pointer, key] : keys) {
    switch (key.spec->status) {
      case KeyStatus::works:
        if (key.is_boolean_block) {
          warnings.push_back(fmt::format("{} ({}:{}) as true or false is deprecated; use {{...}}",
                                         key.pointer, key.node->where.line,
                                         key.node->where.column));
        }
        break;
      case KeyStatus::always_on:
      case KeyStatus::no_effect:
        if (is_without_effect(key)) without_effect.push_back(key.pointer);
        break;
      case KeyStatus::deprecated:
        check_deprecated(table, keys, key, problems, warnings);
        break;
      case KeyStatus::not_yet:
      case KeyStatus::removed:
        if (key.spec->is_unsupported() && asks_for_something(key)) {
          report_unsupported(key, *key.spec, problems);
        }
        break;
    }
  }
  if (!without_effect.empty()) {
    warnings.push_back(fmt::format("no effect in zerorun: {} (`zerorun config check` says why)",
                                   fmt::join(without_effect, ", ")));
  }
}

}  // namespace zerorun
