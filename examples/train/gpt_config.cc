#include "examples/train/gpt_config.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "checkpoint/file.h"
#include "core/check.h"

namespace zerorun::train {

namespace {

using Json = nlohmann::json;

struct Preset {
  std::string_view name;
  int64_t layers;
  int64_t width;
  int64_t heads;
  int64_t positions;
};

// The gpt2 sizes: Radford et al. 2019, table 2.
constexpr auto kPresets = std::to_array<Preset>({
    {"nano", 4, 128, 4, 256},
    {"mini", 6, 384, 6, 256},
    {"gpt2", 12, 768, 12, 1024},
    {"gpt2-medium", 24, 1024, 16, 1024},
    {"gpt2-large", 36, 1280, 20, 1024},
    {"gpt2-xl", 48, 1600, 25, 1024},
});

// Keys of GPT2Config that change the arithmetic, with the only value that this program computes.
struct FixedKey {
  std::string_view name;
  Json value;
};

const std::array<FixedKey, 7>& fixed_keys() {
  static const std::array<FixedKey, 7> keys = {{
      {"model_type", "gpt2"},
      {"activation_function", "gelu_new"},
      {"scale_attn_weights", true},
      {"scale_attn_by_inverse_layer_idx", false},
      {"reorder_and_upcast_attn", false},
      {"add_cross_attention", false},
      {"tie_word_embeddings", true},
  }};
  return keys;
}

constexpr int64_t kMaxSize = 1 << 24;
constexpr uint64_t kMaxNbytes = 1 << 20;

int64_t positive(const Json& json, const std::string& source, const char* key, int64_t fallback) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return fallback;
  if (!found->is_number_integer() || found->get<int64_t>() < 1 ||
      found->get<int64_t>() > kMaxSize) {
    fail<ConfigError>("{}: /{} is {}: expected an integer from 1 to {}", source, key, found->dump(),
                      kMaxSize);
  }
  return found->get<int64_t>();
}

float epsilon_of(const Json& json, const std::string& source) {
  const auto found = json.find("layer_norm_epsilon");
  if (found == json.end()) return GptConfig().layer_norm_epsilon;
  if (!found->is_number() || !(found->get<double>() > 0.0) || found->get<double>() > 1.0) {
    fail<ConfigError>("{}: /layer_norm_epsilon is {}: expected a number in (0, 1]", source,
                      found->dump());
  }
  return found->get<float>();
}

std::string preset_names() {
  std::string names;
  for (const Preset& preset : kPresets) {
    names += names.empty() ? "" : ", ";
    names += preset.name;
  }
  return names;
}

}  // namespace

GptConfig gpt_config(const std::string& model) {
  for (const Preset& preset : kPresets) {
    if (preset.name != model) continue;
    GptConfig config;
    config.layers = preset.layers;
    config.width = preset.width;
    config.heads = preset.heads;
    config.positions = preset.positions;
    config.inner = 4 * preset.width;
    return config;
  }
  if (!model.ends_with(".json")) {
    fail<ConfigError>("unknown model '{}': expected one of {}, or the path of a config.json", model,
                      preset_names());
  }
  return gpt_config_from_json(read_text(model, kMaxNbytes), model);
}

GptConfig gpt_config_from_json(const std::string& json_text, const std::string& source) {
  const Json json = Json::parse(json_text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    fail<ConfigError>("{}: expected a JSON object with the keys of Hugging Face's GPT2Config",
                      source);
  }
  for (const FixedKey& key : fixed_keys()) {
    const auto found = json.find(key.name);
    if (found == json.end() || *found == key.value) continue;
    fail<ConfigError>("{}: /{} is {}: this program trains GPT-2, where it is {}", source, key.name,
                      found->dump(), key.value.dump());
  }
  GptConfig config;
  config.vocabulary = positive(json, source, "vocab_size", 0);
  config.positions = positive(json, source, "n_positions", 1024);
  config.width = positive(json, source, "n_embd", 768);
  config.layers = positive(json, source, "n_layer", 12);
  config.heads = positive(json, source, "n_head", 12);
  config.inner = positive(json, source, "n_inner", 4 * config.width);
  config.layer_norm_epsilon = epsilon_of(json, source);
  if (config.width % config.heads != 0) {
    fail<ConfigError>("{}: /n_embd {} is not divisible by /n_head {}", source, config.width,
                      config.heads);
  }
  return config;
}

std::string to_json(const GptConfig& config) {
  Json json = {
      {"architectures", {"GPT2LMHeadModel"}},
      {"vocab_size", config.vocabulary},
      {"n_positions", config.positions},
      {"n_ctx", config.positions},
      {"n_embd", config.width},
      {"n_layer", config.layers},
      {"n_head", config.heads},
      {"n_inner", config.inner},
      {"layer_norm_epsilon", config.layer_norm_epsilon},
      {"initializer_range", 0.02},
      {"resid_pdrop", 0.0},
      {"embd_pdrop", 0.0},
      {"attn_pdrop", 0.0},
      {"use_cache", true},
      {"bos_token_id", nullptr},
      {"eos_token_id", nullptr},
  };
  for (const FixedKey& key : fixed_keys()) json[std::string(key.name)] = key.value;
  return json.dump(2) + "\n";
}

int64_t parameter_count(const GptConfig& config) {
  const int64_t width = config.width;
  const int64_t attention = 4 * width * width + 4 * width;
  const int64_t feed_forward = 2 * width * config.inner + config.inner + width;
  const int64_t norms = 4 * width;
  return (config.vocabulary + config.positions) * width + 2 * width +
         config.layers * (attention + feed_forward + norms);
}

}  // namespace zerorun::train
