#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <set>

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
  const auto has = [&](unsigned type) { return (spec.type & type) != 0; };
  std::vector<Json> out;
  if (has(KeyType::boolean)) {
    out.push_back({{"type", "boolean"}});
    out.push_back({{"enum", {0, 1}}});
  }
  if (has(KeyType::integer)) out.push_back(numeric("integer", spec.range));
  if (has(KeyType::number)) out.push_back(numeric("number", spec.range));
  if (has(KeyType::infinity)) out.push_back({{"const", "inf"}});
  if (has(KeyType::string)) {
    out.push_back(spec.choices.empty() ? Json{{"type", "string"}}
                                       : Json{{"enum", string_list(split_choices(spec.choices))}});
  }
  if (has(KeyType::strings)) {
    out.push_back({{"type", "array"}, {"items", {{"type", "string"}}}});
  }
  if (has(KeyType::integers)) {
    out.push_back({{"type", "array"}, {"items", numeric("integer", spec.range)}});
  }
  if (has(KeyType::numbers)) {
    out.push_back({{"type", "array"}, {"items", numeric("number", spec.range)}, {"minItems", 1}});
  }
  if (has(KeyType::betas)) {
    const Json beta = {{"type", "number"}, {"minimum", 0}, {"exclusiveMaximum", 1}};
    out.push_back({{"type", "array"}, {"items", beta}, {"minItems", 2}, {"maxItems", 2}});
  }
  if (has(KeyType::free_form)) out.push_back({{"type", "object"}});
  return out;
}

// Returns the schemas for an unsupported key, which allow only the default.
std::vector<Json> nothing_asked(const KeySpec& spec) {
  if ((spec.type & (KeyType::free_form | KeyType::block)) == 0) {
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
  if ((spec.type & KeyType::boolean) != 0) schema["type"].push_back("boolean");
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

}  // namespace zerorun
