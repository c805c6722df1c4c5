#include "config/checks/check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "config/checks/suggest.h"
#include "core/check.h"
#include "zerorun/version.h"

namespace zerorun {

namespace {

using Kind = JsonNode::Kind;

// DeepSpeed's older form "zero_optimization": true means stage 1.
void expand_boolean_block(JsonNode& node) {
  JsonNode stage = JsonNode::of(node.boolean ? 1 : 0);
  stage.where = node.where;
  stage.key = "stage";
  stage.key_where = node.key_where;
  node.kind = Kind::object;
  node.children.push_back(std::move(stage));
}

// What true or false may mean where a block is expected: {"enabled": true}, {"device": "none"}.
std::string advise_block(const KeySpec& spec, const JsonNode& node) {
  if (!spec.is_block() || node.kind != Kind::boolean) return {};
  if (key_table().find(append_pointer(spec.pointer, "enabled")) != nullptr) {
    return fmt::format("; write {{\"enabled\": {}}}", node.boolean);
  }
  if (key_table().find(append_pointer(spec.pointer, "device")) != nullptr) {
    return fmt::format("; write {{\"device\": \"{}\"}}", node.boolean ? "cpu" : "none");
  }
  return {};
}

class KeyChecker {
 public:
  explicit KeyChecker(ConfigProblems& problems) : problems_(problems) {}

  // `block` is the pointer in the table, `written` the pointer in the file.
  void check_block(std::string_view block, const std::string& written, JsonNode& node) {
    for (JsonNode& child : node.children) {
      const std::string pointer = append_pointer(written, child.key);
      const KeySpec* spec = key_table().find(append_pointer(block, child.key));
      if (spec == nullptr) {
        report_unknown(block, pointer, child);
      } else {
        check_key(*spec, pointer, child);
      }
    }
  }

  GivenKeys take_keys() { return std::move(keys_); }

 private:
  void report_unknown(std::string_view block, const std::string& pointer, const JsonNode& node) {
    const std::string advice = problems_.is_full() ? std::string() : suggest_key(block, node.key);
    problems_.add(pointer, node.key_where, "unknown key; {}", advice);
  }

  void check_key(const KeySpec& spec, const std::string& pointer, JsonNode& node) {
    const auto [known, is_new] =
        keys_.try_emplace(spec.pointer, GivenKey{&spec, &node, pointer, true});
    // a duplicate of the same name is already reported
    if (!is_new && known->second.pointer != pointer) {
      problems_.add(pointer, node.key_where, "the same setting as {} at {}; keep one of them",
                    known->second.pointer, to_text(known->second.node->key_where));
    }
    if (const auto problem = check_value(spec, node)) {
      problems_.add(pointer, node.where, "{}{}", *problem, advise_block(spec, node));
      known->second.is_valid = false;
      return;
    }
    if (!spec.is_block()) return;
    if (node.kind == Kind::boolean) {
      known->second.is_boolean_block = true;
      expand_boolean_block(node);
    }
    check_block(spec.pointer, pointer, node);
  }

  ConfigProblems& problems_;
  GivenKeys keys_;
};

// Returns the keys of the file; each has a valid value, or a problem is reported.
GivenKeys check_names_and_values(JsonNode& root, ConfigProblems& problems) {
  if (root.kind != Kind::object) {
    problems.add("", root.where, "got {}, expected an object", to_short_text(root));
    return {};
  }
  if (find_member(root, "compute_environment") != nullptr) {  // YAML, which reads as Hjson
    problems.add(
        "", root.where,
        "this is a configuration of accelerate, which `accelerate launch --config_file` reads; "
        "expected the DeepSpeed configuration that its deepspeed_config_file names");
    return {};
  }
  KeyChecker checker(problems);
  checker.check_block("", "", root);
  return checker.take_keys();
}

bool is_off(const JsonNode& object) {
  const JsonNode* enabled = find_member(object, "enabled");
  if (enabled == nullptr) return object.children.empty();
  return (enabled->kind == Kind::boolean && !enabled->boolean) || enabled->text == "auto";
}

// True if the value is given and differs from the default. An object that is empty or has
// "enabled": false counts as the default.
bool asks_for_something(const GivenKey& key) {
  const JsonNode* value = given_value(key);
  if (value == nullptr) return false;
  if (value->kind == Kind::object) return !is_off(*value);
  const std::string text = to_text(*value);
  const std::vector<std::string_view> idle = split_choices(key.spec->idle);
  return text != key.spec->fallback && std::ranges::find(idle, text) == idle.end();
}

// True if the key is accepted but its value has no effect.
bool is_without_effect(const GivenKey& key) {
  if (key.spec->status == KeyStatus::no_effect) return asks_for_something(key);
  return key.spec->status == KeyStatus::always_on && asks_for_something(key) && !key.node->boolean;
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

void check_deprecated(const GivenKeys& keys, const GivenKey& key, ConfigProblems& problems,
                      std::vector<std::string>& warnings) {
  const KeySpec& replacement = key_table().current(*key.spec);
  if (const auto both = keys.find(replacement.pointer); both != keys.end()) {
    problems.add(key.pointer, key.node->key_where,
                 "replaced by {}, which is given too, at {}; remove this one", both->second.pointer,
                 to_text(both->second.node->key_where));
  } else if (replacement.is_unsupported() && asks_for_something(key)) {
    report_unsupported(key, replacement, problems);
  } else {
    warnings.push_back(fmt::format("{} ({}) is deprecated; use {}", key.pointer,
                                   to_text(key.node->key_where), replacement.pointer));
  }
}

// Checks a key for PyTorch models: for other readers its value must be the default.
void check_reader(const GivenKey& key, ConfigReader reader, ConfigProblems& problems) {
  if (reader == ConfigReader::pytorch || !key.spec->gate.empty() || !asks_for_something(key))
    return;
  problems.add(key.pointer, key.node->where,
               "got {}, which is for PyTorch models (zerorun.initialize) only; remove it",
               to_short_text(*key.node));
}

// Reports problems and warnings that follow from the status of keys.
void check_statuses(const GivenKeys& keys, ConfigProblems& problems,
                    std::vector<std::string>& warnings, ConfigReader reader) {
  std::vector<std::string_view> without_effect;
  for (const auto& [pointer, key] : keys) {
    switch (key.spec->status) {
      case KeyStatus::works:
        if (key.is_boolean_block) {
          warnings.push_back(fmt::format("{} ({}) as true or false is deprecated; use {{...}}",
                                         key.pointer, to_text(key.node->where)));
        }
        break;
      case KeyStatus::pytorch:
        check_reader(key, reader, problems);
        break;
      case KeyStatus::always_on:
      case KeyStatus::no_effect:
        if (is_without_effect(key)) without_effect.push_back(key.pointer);
        break;
      case KeyStatus::deprecated:
        check_deprecated(keys, key, problems, warnings);
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

// "/optimizer" for "/optimizer/params/lr".
std::string_view block_of(const KeySpec& spec) {
  return spec.parent().substr(0, spec.parent().rfind('/'));
}

std::vector<std::string_view> names_used_by(std::string_view block, std::string_view type) {
  std::vector<std::string_view> names;
  for (const KeySpec* spec : key_table().children(block)) {
    if (spec->status == KeyStatus::works && spec->is_used_by(type)) names.push_back(spec->name());
  }
  return names;
}

void report_unused(const GivenKey& key, std::string_view type, ConfigProblems& problems) {
  if (type.empty()) {
    problems.add(key.pointer, key.node->key_where, "is set, but {}/type is missing",
                 block_of(*key.spec));
  } else {
    problems.add(key.pointer, key.node->key_where, "{} has no such parameter; it has {}", type,
                 fmt::join(names_used_by(key.spec->parent(), type), ", "));
  }
}

void check_required(const GivenKeys& keys, const KeySpec& spec, std::string_view type,
                    ConfigProblems& problems) {
  const auto found = keys.find(spec.pointer);
  if (found != keys.end() && found->second.node->kind != JsonNode::Kind::null &&
      (spec.auto_waits || !is_auto(spec, *found->second.node))) {
    return;
  }
  const auto type_key = keys.find(fmt::format("{}/type", block_of(spec)));
  const JsonNode& place =
      found != keys.end() ? *found->second.node : *type_key->second.node;  // the file has a type
  problems.add(spec.pointer, place.where, "missing; {} needs it, expected {}", type,
               expected_value(spec));
}

// Checks parameters of an optimizer or scheduler, which depend on its type (KeySpec::used_by).
void check_type_params(const GivenKeys& keys, ConfigProblems& problems) {
  for (const KeySpec* spec : key_table().keys()) {
    if (spec->used_by.empty()) continue;
    const std::optional<std::string_view> type = type_for(keys, *spec);
    if (!type) continue;
    if (!spec->is_used_by(*type)) {
      const auto given = keys.find(spec->pointer);
      if (given != keys.end() && given_value(given->second) != nullptr) {
        report_unused(given->second, *type, problems);
      }
    } else if (spec->is_required) {
      check_required(keys, *spec, *type, problems);
    }
  }
}

}  // namespace

GivenKeys check_keys(JsonNode& root, ConfigProblems& problems, std::vector<std::string>& warnings,
                     ConfigReader reader) {
  GivenKeys keys = check_names_and_values(root, problems);
  check_statuses(keys, problems, warnings, reader);
  check_type_params(keys, problems);
  return keys;
}

const JsonNode* given_value(const GivenKey& key) {
  const bool is_given =
      key.is_valid && key.node->kind != Kind::null && !is_auto(*key.spec, *key.node);
  return is_given ? key.node : nullptr;
}

const JsonNode* given_value(const GivenKeys& keys, std::string_view pointer) {
  const auto found = keys.find(pointer);
  return found == keys.end() ? nullptr : given_value(found->second);
}

bool is_invalid(const GivenKeys& keys, std::string_view pointer) {
  const auto found = keys.find(pointer);
  return found != keys.end() && !found->second.is_valid;
}

std::optional<std::string_view> type_for(const GivenKeys& keys, const KeySpec& spec) {
  if (spec.used_by.empty() && spec.type_fallbacks.empty()) return "";
  const KeySpec* type = key_table().find(fmt::format("{}/type", block_of(spec)));
  if (type == nullptr) return "";
  if (const auto given = keys.find(type->pointer); given != keys.end()) {
    if (!given->second.is_valid) return std::nullopt;
    if (const JsonNode* value = given_value(given->second)) return value->text;
  }
  if (type->fallback == "null") return "";
  return type->fallback.substr(1, type->fallback.size() - 2);  // without the quotes
}

}  // namespace zerorun
