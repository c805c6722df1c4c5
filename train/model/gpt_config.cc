#include "train/model/gpt_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "config/checks/suggest.h"
#include "core/check.h"
#include "core/printable.h"
#include "os/text_file.h"

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

std::vector<std::string> list_presets() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

// Keys of GPT2Config that change the arithmetic, with the only value that this program supports.
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

// Keys that the shape of a GPT-2 requires; Hugging Face always writes them.
constexpr auto kRequiredKeys =
    std::to_array<std::string_view>({"n_positions", "n_embd", "n_layer", "n_head"});
constexpr auto kOptionalKeys =
    std::to_array<std::string_view>({"vocab_size", "n_inner", "layer_norm_epsilon"});

constexpr int64_t kMaxSize = 1 << 24;
constexpr double kMaxParameters = 1e13;
// Unknown keys are allowed, because other kinds of models have them. But if a known key is missing
// and an unknown key is similar, that is reported as a misspelling.
void check_keys(const HfConfig& config) {
  const Json& json = config.json();
  std::vector<std::string> unread;
  std::vector<std::string> read(kRequiredKeys.begin(), kRequiredKeys.end());
  read.insert(read.end(), kOptionalKeys.begin(), kOptionalKeys.end());
  for (const FixedKey& key : fixed_keys()) read.emplace_back(key.name);
  for (const auto& [key, value] : json.items()) {
    if (std::find(read.begin(), read.end(), key) == read.end()) unread.push_back(key);
  }
  for (const std::string& key : read) {
    if (json.contains(key)) continue;
    const std::string meant = nearest_name(key, unread);
    if (!meant.empty()) {
      fail<ConfigError>("{}: unknown key /{}; did you mean /{}?", config.source(), printable(meant),
                        key);
    }
  }
  for (const std::string_view key : kRequiredKeys) {
    if (json.contains(key)) continue;
    fail<ConfigError>(
        "{}: /{} is missing: expected the config.json of a Hugging Face GPT-2, with at least {}",
        config.source(), key, fmt::join(kRequiredKeys, ", "));
  }
}

float epsilon_of(const HfConfig& config) {
  const auto found = config.json().find("layer_norm_epsilon");
  if (found == config.json().end()) return GptConfig().layer_norm_epsilon;
  if (!found->is_number() || !(found->get<double>() > 0.0) || found->get<double>() > 1.0) {
    config.fail_value("layer_norm_epsilon", "a number above 0 and up to 1");
  }
  return found->get<float>();
}

}  // namespace

std::string preset_names() { return fmt::format("{}", fmt::join(list_presets(), ", ")); }

std::string suggest_preset(std::string_view name) {
  const std::string nearest = nearest_name(name, list_presets());
  return nearest.empty() ? "" : fmt::format(" (did you mean \"{}\"?)", nearest);
}

std::optional<GptConfig> gpt_preset(const std::string& name) {
  const auto preset = std::ranges::find(kPresets, name, &Preset::name);
  if (preset == kPresets.end()) return std::nullopt;
  return GptConfig{.positions = preset->positions,
                   .width = preset->width,
                   .layers = preset->layers,
                   .heads = preset->heads,
                   .inner = 4 * preset->width};
}

GptConfig gpt_config(const std::string& model) {
  if (const auto preset = gpt_preset(model)) return *preset;
  if (!model.ends_with(".json")) {
    fail<ConfigError>("unknown model '{}'{}: expected one of {}, or the path of a config.json",
                      model, suggest_preset(model), preset_names());
  }
  return gpt_config(HfConfig::read(model));
}

GptConfig read_gpt_shape(const HfConfig& config) {
  GptConfig shape;
  shape.vocabulary = config.has("vocab_size") ? config.integer("vocab_size", kMaxSize) : 0;
  shape.positions = config.integer("n_positions", kMaxSize, GptConfig().positions);
  shape.width = config.integer("n_embd", kMaxSize);
  shape.layers = config.integer("n_layer", kMaxSize);
  shape.heads = config.integer("n_head", kMaxSize);
  shape.inner = config.integer("n_inner", kMaxSize, 4 * shape.width);
  if (shape.width % shape.heads != 0) {
    config.fail_value("n_head", fmt::format("a divisor of the width, {}", shape.width));
  }
  return shape;
}

GptConfig gpt_config(const HfConfig& config) {
  for (const FixedKey& key : fixed_keys()) {
    const auto found = config.json().find(key.name);
    if (found == config.json().end() || *found == key.value) continue;
    config.fail_value(std::string(key.name),
                      fmt::format("{}, since this program trains GPT-2", key.value.dump()));
  }
  check_keys(config);
  GptConfig gpt = read_gpt_shape(config);
  gpt.layer_norm_epsilon = epsilon_of(config);
  const auto width = static_cast<double>(gpt.width);
  const double parameters = width * (4.0 * width + 2.0 * static_cast<double>(gpt.inner)) *
                            static_cast<double>(gpt.layers);
  if (parameters > kMaxParameters) {
    fail<ConfigError>(
        "{}: a model of {:.2g} parameters, from /n_embd {}, /n_inner {} and "
        "/n_layer {}: expected at most {:.0e}",
        config.source(), parameters, gpt.width, gpt.inner, gpt.layers, kMaxParameters);
  }
  return gpt;
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

double flops_per_token(const GptConfig& config, int64_t seq_len) {
  const auto width = static_cast<double>(config.width);
  const auto layers = static_cast<double>(config.layers);
  const double block = 4 * width * width + 2 * width * static_cast<double>(config.inner);
  const double head = static_cast<double>(config.vocabulary) * width;
  return 6 * (layers * block + head) + 12 * layers * width * static_cast<double>(seq_len);
}

HfConfig::HfConfig(const std::string& json_text, std::string source)
    : source_(std::move(source)),
      json_(nlohmann::json::parse(  // dump() of what is nested deeper would run out of stack
          json_text, [](int depth, auto, auto&) { return depth < 64; },
          /*allow_exceptions=*/false)) {
  if (!json_.is_object()) {
    fail<ConfigError>("{}: expected a JSON object, the config.json of a Hugging Face model",
                      source_);
  }
}

HfConfig HfConfig::read(const std::string& path) {
  constexpr uint64_t kMaxNbytes = 1 << 20;
  return {read_text(path, kMaxNbytes), path};
}

int64_t HfConfig::integer(const char* key, int64_t high, std::optional<int64_t> fallback) const {
  if (fallback && !has(key)) return *fallback;
  const std::string expected = fmt::format("an integer from 1 to {}", high);
  if (!json_.contains(key)) {
    fail<ConfigError>("{}: /{} is missing: expected {}", source_, key, expected);
  }
  const nlohmann::json& value = json_.at(key);
  if (value.is_number_integer() && value >= 1 && value <= high) return value.get<int64_t>();
  fail_value(key, expected);
}

bool HfConfig::boolean(const char* key, bool fallback) const {
  if (!has(key)) return fallback;
  if (!json_.at(key).is_boolean()) fail_value(key, "true or false");
  return json_.at(key).get<bool>();
}

std::string HfConfig::text(const char* key, const char* fallback) const {
  if (!has(key)) return fallback;
  if (!json_.at(key).is_string()) fail_value(key, "a string");
  return json_.at(key).get<std::string>();
}

void HfConfig::fail_value(const std::string& key, const std::string& expected) const {
  constexpr size_t kMaxShown = 80;
  fail<ConfigError>("{}: /{} is {}: expected {}", source_, key,
                    printable(json_.at(key).dump(), kMaxShown), expected);
}

}  // namespace zerorun::train
