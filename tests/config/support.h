#pragma once

#include <nlohmann/json.hpp>

#include "config/keys/key_table.h"
#include "tests/common.h"

namespace zerorun {

// {"zero_optimization": {"stage": 2}} for "/zero_optimization/stage" and "2".
inline std::string nested(std::string_view pointer, std::string_view value) {
  nlohmann::json json;
  json[nlohmann::json::json_pointer(std::string(pointer))] = nlohmann::json::parse(value);
  return json.dump(2);
}

// The message of parse_config's error, or "" when it accepts the text.
inline std::string problems_of(std::string_view text) {
  return error_of<ConfigError>([&] { parse_config(text, "test.json"); });
}

inline void expect_problem(std::string_view text, const std::string& message) {
  EXPECT_THAT(problems_of(text), HasSubstr(message)) << text;
}

inline const ConfigValue* find_value(const ParsedConfig& parsed, std::string_view pointer) {
  for (const ConfigValue& value : parsed.values) {
    if (value.pointer == pointer) return &value;
  }
  return nullptr;
}

// A value that suits the key and differs from its default.
inline std::string other_value(const KeySpec& spec) {
  const auto has = [&](unsigned type) { return (spec.type & type) != 0; };
  if (has(KeyType::boolean)) return spec.fallback == "true" ? "false" : "true";
  if (spec.name() == "block_size") return "8192";
  if (spec.name() == "stage") return "2";
  if (has(KeyType::integer) && spec.range.high < 17) {
    const std::string most = fmt::format("{}", spec.range.high);
    return most != spec.fallback ? most : fmt::format("{}", spec.range.low);
  }
  if (has(KeyType::integer)) return spec.range.high < 2017 ? "17" : "2017";
  if (has(KeyType::number)) return "0.25";
  if (has(KeyType::string)) {
    for (const std::string_view choice : split_choices(spec.choices)) {
      std::string text = nlohmann::json(choice).dump();
      if (text != spec.fallback) return text;
    }
    return R"("some text")";
  }
  if (has(KeyType::strings)) return R"(["a","b"])";
  if (has(KeyType::integers)) return "[8,16]";
  if (has(KeyType::betas)) return "[0.5,0.75]";
  if (spec.pointer == "/optimizer/params/muon_heads") return R"({"*.q.weight":4})";
  return R"({"anything":[1,{"deep":null}]})";
}

// A configuration with one key, and beside it what the key cannot do without: the type that takes
// it, that type's other required parameters, and settings that it depends on.
inline std::string document(std::string_view pointer, std::string_view value) {
  using Pointer = nlohmann::json::json_pointer;
  nlohmann::json json;
  const KeySpec* key = key_table().find(pointer);
  if (key != nullptr && !key->used_by.empty()) {
    const std::string_view type = split_choices(key->used_by).front();
    const std::string_view block = key->parent().substr(0, key->parent().rfind('/'));
    json[Pointer(std::string(block) + "/type")] = type;
    for (const KeySpec* other : key_table().children(key->parent())) {
      if (other->is_required && other->is_used_by(type)) {
        json[Pointer(std::string(other->pointer))] = 100'000;
      }
    }
  }
  if (pointer.ends_with("nesterov")) json[Pointer("/optimizer/params/momentum")] = 0.5;
  if (pointer.ends_with("optimizer_states")) {
    json[Pointer("/bf16/bf16_master_weights_and_grads")] = true;
  }
  for (const std::string_view sharded :
       {"/offload_", "shard_", "/zero_hpz", "/zero_quantized", "/zeropp"}) {
    if (pointer.find(sharded) != std::string_view::npos) {
      json[Pointer("/zero_optimization/stage")] = 3;
    }
  }
  if (pointer.find("/zeropp") != std::string_view::npos) {
    json[Pointer("/zero_optimization/zero_quantized_gradients")] = true;
  }
  if (pointer == "/elasticity/enabled") {
    json["elasticity"] = {{"max_train_batch_size", 100}, {"micro_batch_sizes", {2, 5}}};
  }
  json[Pointer(std::string(pointer))] = nlohmann::json::parse(value);
  return json.dump(2);
}

// Its default in that configuration.
inline std::string_view default_of(const KeySpec& spec) {
  return spec.fallback_for(split_choices(spec.used_by).empty()
                               ? std::string_view()
                               : split_choices(spec.used_by).front());
}

inline std::vector<const KeySpec*> leaf_keys() {
  std::vector<const KeySpec*> leaves;
  for (const KeySpec* spec : key_table().keys()) {
    if (!spec->is_block()) leaves.push_back(spec);
  }
  return leaves;
}

}  // namespace zerorun
