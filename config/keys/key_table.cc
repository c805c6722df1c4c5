#include "config/keys/key_table.h"

#include "core/check.h"

namespace zerorun {

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
  if (used_by.empty()) return true;
  for (size_t begin = 0, end = 0; end != std::string_view::npos; begin = end + 1) {
    end = used_by.find('|', begin);
    if (used_by.substr(begin, end - begin) == type_name) return true;
  }
  return false;
}

std::string_view KeySpec::fallback_for(std::string_view type_name) const {
  for (const std::string_view entry : split_choices(type_fallbacks)) {
    const size_t equals = entry.find('=');
    if (entry.substr(0, equals) == type_name) return entry.substr(equals + 1);
  }
  return fallback;
}

KeyTable::KeyTable() {
  const auto add = [this](std::string pointer, const KeySpec& spec) {
    const bool is_new = by_pointer_.emplace(std::move(pointer), &spec).second;
    ZR_CHECK(is_new, "configuration key {} is in the table twice", spec.pointer);
  };
  for (const auto part : {core_keys(), optimizer_keys(), scheduler_keys(), precision_keys(),
                          zero_keys(), offload_keys(), checkpoint_keys(), monitor_keys(),
                          other_keys(), compile_keys(), zerorun_keys()}) {
    for (const KeySpec& spec : part) {
      keys_.push_back(&spec);
      by_parent_[spec.parent()].push_back(&spec);
      add(std::string(spec.pointer), spec);
      if (!spec.alias.empty()) add(fmt::format("{}/{}", spec.parent(), spec.alias), spec);
    }
  }
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
