#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "config/checks/check.h"
#include "config/docs/report.h"
#include "config/keys/key_table.h"

namespace zerorun {

namespace {

using Json = nlohmann::ordered_json;

Json string_list(const std::vector<std::string_view>& values) {
  // The parser ignores case, so the schema lists the usual spellings.
  std::set<std::string> spellings;
  Json list = Json::array();
  const auto add = [&](std::string text) {
    if (spellings.insert(text).second) list.push_back(std::move(text));
  };
  for (const std::string_view value : values) {
    add(std::string(value));
    std::string lower(value);
    for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    add(std::move(lower));
  }
  return list;
}

// Returns `bound` as an integer if it is one: 0, not 0.0.
Json number(double bound) {
  constexpr double kExact = 0x1p53;
  if (std::abs(bound) <= kExact && std::trunc(bound) == bound) return static_cast<int64_t>(bound);
  return bound;
}

Json numeric(std::string_view type, const KeyRange& range) {
  Json schema = {{"type", type}};
  if (std::isfinite(range.low)) {
    schema[range.above_low ? "exclusiveMinimum" : "minimum"] = number(range.low);
  }
  if (std::isfinite(range.high)) {
    schema["maximum"] = number(range.high);
  } else if (type == "integer") {
    schema["maximum"] = std::numeric_limits<int64_t>::max();
  }
  return schema;
}

// Returns a schema for each type of value that a key accepts.
std::vector<Json> alternatives(const KeySpec& spec) {
  std::vector<Json> out;
  if (spec.takes(KeyType::boolean)) {
    out.push_back({{"type", "boolean"}});
    out.push_back({{"enum", {0, 1}}});
  }
  if (spec.takes(KeyType::integer)) out.push_back(numeric("integer", spec.range));
  if (spec.takes(KeyType::number)) out.push_back(numeric("number", spec.range));
  if (spec.takes(KeyType::infinity)) out.push_back({{"const", "inf"}});
  if (spec.takes(KeyType::string)) {
    out.push_back(spec.choices.empty() ? Json{{"type", "string"}}
                                       : Json{{"enum", string_list(split_choices(spec.choices))}});
  }
  if (spec.takes(KeyType::strings)) {
    out.push_back({{"type", "array"}, {"items", {{"type", "string"}}}});
  }
  if (spec.takes(KeyType::integers)) {
    out.push_back({{"type", "array"}, {"items", numeric("integer", spec.range)}});
  }
  if (spec.takes(KeyType::numbers)) {
    out.push_back({{"type", "array"}, {"items", numeric("number", spec.range)}, {"minItems", 1}});
  }
  if (spec.takes(KeyType::betas)) {
    const Json beta = {{"type", "number"}, {"minimum", 0}, {"exclusiveMaximum", 1}};
    out.push_back({{"type", "array"}, {"items", beta}, {"minItems", 2}, {"maxItems", 2}});
  }
  if (spec.takes(KeyType::free_form)) out.push_back({{"type", "object"}});
  return out;
}

// Returns the schemas for an unsupported key, which allow only the default.
std::vector<Json> nothing_asked(const KeySpec& spec) {
  if (!spec.takes(KeyType::free_form | KeyType::block)) {
    std::vector<Json> out = {{{"const", Json::parse(spec.fallback)}}};
    for (const std::string_view value : split_choices(spec.idle)) {
      out.push_back({{"const", Json::parse(value)}});
    }
    return out;
  }
  const Json off = {{"enum", {false, "auto"}}};
  return {{{"type", "object"}, {"maxProperties", 0}},
          {{"type", "object"}, {"required", {"enabled"}}, {"properties", {{"enabled", off}}}}};
}

bool may_not_ask(const KeySpec& spec) { return key_table().current(spec).is_unsupported(); }

Json object_schema(std::string_view block);

Json block_schema(const KeySpec& spec) {
  Json schema = object_schema(spec.pointer);
  schema["type"] = {"object", "null"};
  if (!spec.parent().empty()) {
    schema["type"].push_back("string");
    schema["pattern"] = "^auto$";  // does not restrict values that are not strings
  }
  if (spec.takes(KeyType::boolean)) schema["type"].push_back("boolean");
  if (may_not_ask(spec)) schema["maxProperties"] = 0;
  return schema;
}

Json leaf_schema(const KeySpec& spec) {
  std::vector<Json> allowed = may_not_ask(spec) ? nothing_asked(spec) : alternatives(spec);
  if (!spec.refuses_null) allowed.push_back({{"type", "null"}});
  allowed.push_back({{"const", "auto"}});
  Json schema = allowed.size() == 1 ? allowed.front() : Json{{"anyOf", allowed}};
  if (spec.fallback != "null") schema["default"] = Json::parse(spec.fallback);
  return schema;
}

Json key_schema(const KeySpec& spec) {
  Json schema = spec.is_block() ? block_schema(spec) : leaf_schema(spec);
  std::string text(spec.doc);
  if (may_not_ask(spec)) text += " Not supported by this version of zerorun.";
  if (spec.status == KeyStatus::no_effect) text += " No effect in zerorun.";
  if (!spec.used_by.empty()) {
    text += fmt::format(" Of {}.", fmt::join(split_choices(spec.used_by), ", "));
  }
  schema["description"] = text;
  if (spec.status == KeyStatus::deprecated) schema["deprecated"] = true;
  return schema;
}

Json object_schema(std::string_view block) {
  Json properties = Json::object();
  for (const KeySpec* spec : key_table().children(block)) {
    properties[std::string(spec->name())] = key_schema(*spec);
    if (!spec->alias.empty()) properties[std::string(spec->alias)] = key_schema(*spec);
  }
  return {{"type", "object"}, {"properties", properties}, {"additionalProperties", false}};
}

}  // namespace

std::string json_schema() {
  Json schema = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                 {"title", "ds_config.json as zerorun reads it"}};
  schema.update(object_schema(""));
  return schema.dump(2) + '\n';
}

namespace {

constexpr std::string_view kIntroduction = R"(# Configuration

zerorun reads the `ds_config.json` of DeepSpeed 0.19. This page lists every key. It is generated from
the table that the parser uses: `zerorun config docs > docs/config.md`.

- A file is JSON; comments (`//`, `#`, `/* */`) and trailing commas are allowed. Integers may be written
  as `5e8`.
- All problems of a file are reported at once, each with its JSON pointer, line and column: unknown keys,
  wrong types, duplicate keys, contradictory values and unsupported values.
- Files in [Hjson](https://hjson.github.io) are read, too, as DeepSpeed does: keys and strings without
  quotes, lines without commas. Multi-line strings are not supported.
- `null` and `"auto"` mean the same as leaving a key out, also for blocks inside a block, with three exceptions.
  Bucket sizes that are `"auto"` follow the width of the model if the program knows it, as with Hugging Face's
  Trainer. If a key marked *auto* is `"auto"`, it has no default: the program or the run has to set the
  value. `gradient_clipping` rejects `null`, which could mean its default or no clipping.
- `0` and `1` are accepted for `false` and `true`.
- The URL-safe base64 text of a file is accepted in place of its path.
- `zerorun config check FILE` checks a file, `zerorun config show FILE` prints the resolved value of every key,
  `zerorun config schema` prints a JSON Schema for editors.

| status | meaning |
|---|---|
| works | supported |
| PyTorch | supported for PyTorch models; for `zerorun train` and C++ programs a value other than the default is an error |
| always on | zerorun always does what `true` asks for; `false` has no effect |
| no effect | accepted, but does nothing, for the reason given; a value other than the default causes a warning |
| deprecated | accepted under its older name, with a warning |
| not yet | not supported: a value other than the default is an error |
| removed | as "not yet"; DeepSpeed 0.19 has removed the key, too |
)";

// Escapes text for a table cell.
std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

// In the order of KeyStatus.
constexpr auto kStatusNames = std::to_array<std::string_view>(
    {"works", "PyTorch", "always on", "no effect", "deprecated", "not yet", "removed"});

std::string used_with(const KeySpec& spec) {
  if (spec.gate.empty()) return {};
  return fmt::format(" Used with `{}` only.", fmt::join(split_choices(spec.gate), "` or `"));
}

std::string meaning(const KeySpec& spec) {
  std::string text(spec.doc);
  switch (spec.status) {
    case KeyStatus::works:
    case KeyStatus::pytorch:
    case KeyStatus::always_on:
      text += used_with(spec);
      break;
    case KeyStatus::no_effect:
      text += fmt::format(" No effect: {}.", spec.note);
      break;
    case KeyStatus::deprecated:
      text += fmt::format(" Use `{}`.", spec.note);
      break;
    case KeyStatus::not_yet:
    case KeyStatus::removed:
      if (!spec.note.empty()) text += fmt::format(" Instead: {}.", spec.note);
      text += used_with(spec);
      break;
  }
  if (!spec.used_by.empty()) {
    text += fmt::format(" {} {}.", spec.is_required ? "Required by" : "Only for",
                        fmt::join(split_choices(spec.used_by), ", "));
  }
  for (const std::string_view entry : split_choices(spec.type_fallbacks)) {
    const size_t equals = entry.find('=');
    text += fmt::format(" {}: default `{}`.", entry.substr(0, equals), entry.substr(equals + 1));
  }
  if (!spec.later.empty()) {
    text += fmt::format(" Not yet: {}.", fmt::join(split_choices(spec.later), ", "));
  }
  if (!spec.torch_classes.empty()) {
    text += fmt::format(" Programs that import `deepspeed` can also name torch's: {}.",
                        fmt::join(split_choices(spec.torch_classes), ", "));
  }
  if (!spec.alias.empty()) text += fmt::format(" Also spelt `{}`.", spec.alias);
  if (spec.auto_waits) text += " *auto*";
  return text;
}

std::string block_title(std::string_view pointer) {
  std::string title(pointer.substr(1));
  std::ranges::replace(title, '/', '.');
  return title;
}

// The keys directly below a block, then its blocks.
void add_block(std::string_view block, std::string& out) {
  std::string rows;
  for (const KeySpec* spec : key_table().children(block)) {
    if (spec->is_block() && spec->status == KeyStatus::works) continue;
    const std::string fallback =
        spec->fallback == "null" ? "not given" : fmt::format("`{}`", spec->fallback);
    rows += fmt::format("| `{}` | {} | {} | {} | {} |\n", spec->name(), cell(expected_value(*spec)),
                        fallback, kStatusNames[static_cast<size_t>(spec->status)],
                        cell(meaning(*spec)));
  }
  if (!rows.empty()) {
    out += fmt::format("\n| key | type | default | status | meaning |\n|---|---|---|---|---|\n{}",
                       rows);
  }
  for (const KeySpec* spec : key_table().children(block)) {
    if (!spec->is_block()) continue;
    out += fmt::format("\n## {}\n\n{}\n", block_title(spec->pointer), meaning(*spec));
    add_block(spec->pointer, out);
  }
}

std::string reason_to_refuse(const KeySpec& spec) {
  std::string reason =
      spec.status == KeyStatus::removed ? "DeepSpeed 0.19 has removed it too" : "not built yet";
  if (!spec.note.empty()) reason += fmt::format("; instead: {}", spec.note);
  return reason;
}

// Lists all settings of DeepSpeed that zerorun does not support, in one table.
void add_refused(std::string& out) {
  out +=
      "\n## Unsupported keys\n\n"
      "A configuration that uses one of these gets an error that names the key. All other keys "
      "that DeepSpeed 0.19.8 reads are accepted.\n\n| key | what it does in DeepSpeed | reason "
      "|\n|---|---|---|\n";
  for (const KeySpec* spec : key_table().keys()) {
    if (spec->is_unsupported()) {
      out += fmt::format("| `{}` | {} | {} |\n", block_title(spec->pointer), cell(spec->doc),
                         cell(reason_to_refuse(*spec)));
    }
    if (!spec->later.empty()) {
      out += fmt::format("| `{}` | {} | not built yet |\n", block_title(spec->pointer),
                         fmt::join(split_choices(spec->later), ", "));
    }
  }
  out +=
      "\nKeys that DeepSpeed does not read are errors as well, and the error suggests the nearest "
      "key. This includes keys at the top level, which DeepSpeed ignores; programs that import "
      "`deepspeed` get a warning for those instead. `compile.disable` and `compile.backend`, which "
      "some templates contain, are such keys: DeepSpeed 0.19 rejects them, too.\n";
}

}  // namespace

std::string config_markdown() {
  std::string out(kIntroduction);
  out += "\n## Top level\n";
  add_block("", out);
  add_refused(out);
  return out;
}

}  // namespace zerorun
