#include "tools/plan_shape.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "checkpoint/file.h"
#include "config/problems.h"
#include "core/check.h"

namespace zerorun {

namespace {

// A Hugging Face config.json.
class HfConfig {
 public:
  explicit HfConfig(const std::string& path) : source_(path) {
    constexpr uint64_t kMaxNbytes = 1 << 20;
    json_ = nlohmann::json::parse(read_text(path, kMaxNbytes), nullptr, false);
    if (!json_.is_object()) fail<ConfigError>("{}: not a JSON object", path);
  }

  bool has(const char* key) const { return json_.contains(key) && !json_.at(key).is_null(); }
  int64_t integer(const char* key, int64_t most, std::optional<int64_t> fallback = {}) const {
    if (!has(key)) {
      if (fallback) return *fallback;
      fail<ConfigError>("{}: /{} is missing: expected an integer from 1 to {}", source_, key, most);
    }
    const nlohmann::json& value = json_.at(key);
    if (value.is_number_integer() && value >= 1 && value <= most) return value.get<int64_t>();
    fail_type(key, fmt::format("an integer from 1 to {}", most));
  }
  bool boolean(const char* key, bool fallback) const {
    if (!has(key)) return fallback;
    if (!json_.at(key).is_boolean()) fail_type(key, "true or false");
    return json_.at(key).get<bool>();
  }
  std::string text(const char* key, const char* fallback) const {
    if (!has(key)) return fallback;
    if (!json_.at(key).is_string()) fail_type(key, "a string");
    return json_.at(key).get<std::string>();
  }
  [[noreturn]] void fail_type(const char* key, const std::string& expected) const {
    constexpr size_t kMaxShown = 80;
    fail<ConfigError>(
        "{}: /{} is {}: expected {}", source_, key,
        printable(json_.at(key).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
                  kMaxShown),
        expected);
  }

 private:
  std::string source_;
  nlohmann::json json_;
};

// What a model_type is when its file does not say.
struct HfKind {
  std::string_view type;
  bool tied;
  bool query_bias;
  int64_t head_width = 0;  // 0: width / heads
  bool head_norms = false;
};

// Models of the Llama kind whose parameters the formula covers, one by one; beside them gpt2.
constexpr auto kHfKinds = std::to_array<HfKind>({
    {"llama", false, false},
    {"mistral", false, false},
    {"qwen2", false, true},
    {"qwen3", false, false, 128, true},
    {"gemma", true, false, 256},
    {"phi3", false, false},
});

constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxWidth = 1 << 24;

// Widths of attention from the heads.
void set_heads(const HfConfig& config, int64_t heads, int64_t key_value_heads, int64_t head_width,
               const char* key, PlanShape& shape) {
  const int64_t width = head_width > 0 ? head_width : shape.width / heads;
  if (head_width == 0 && shape.width % heads != 0) {
    config.fail_type(key, fmt::format("a divisor of the width, {}", shape.width));
  }
  shape.heads = heads;
  shape.query_width = heads * width;
  shape.key_value_width = key_value_heads * width;
  if (std::max(shape.query_width, shape.key_value_width) > kMaxWidth) {
    config.fail_type(key, fmt::format("at most {} elements in all heads", kMaxWidth));
  }
}

PlanShape shape_of_gpt2(const HfConfig& config) {
  PlanShape shape;
  shape.width = config.integer("n_embd", kMaxWidth);
  shape.layers = config.integer("n_layer", kMaxLayers);
  shape.vocabulary = config.integer("vocab_size", kMaxWidth, 50257);
  shape.positions = config.integer("n_positions", kMaxWidth, 1024);
  shape.inner = config.integer("n_inner", kMaxWidth, 4 * shape.width);
  const int64_t heads = config.integer("n_head", kMaxWidth);
  set_heads(config, heads, heads, 0, "n_head", shape);
  shape.tied = shape.is_bundled = config.boolean("tie_word_embeddings", true);
  return shape;
}

PlanShape shape_of_llama(const HfConfig& config, const HfKind& kind) {
  PlanShape shape;
  shape.is_bundled = false;
  shape.width = config.integer("hidden_size", kMaxWidth);
  shape.layers = config.integer("num_hidden_layers", kMaxLayers);
  shape.vocabulary = config.integer("vocab_size", kMaxWidth);
  shape.inner = config.integer("intermediate_size", kMaxWidth);
  const int64_t heads = config.integer("num_attention_heads", kMaxWidth);
  const int64_t head_width =
      config.has("head_dim") ? config.integer("head_dim", kMaxWidth) : kind.head_width;
  set_heads(config, heads, config.integer("num_key_value_heads", kMaxWidth, heads), head_width,
            "num_attention_heads", shape);
  const bool bias = config.boolean("attention_bias", false);
  shape.block = {.gated = true,
                 .query_bias = kind.query_bias || bias,
                 .output_bias = bias,
                 .inner_bias = config.boolean("mlp_bias", false),
                 .head_norm = kind.head_norms ? shape.query_width / heads : 0};
  shape.tied = config.boolean("tie_word_embeddings", kind.tied);
  return shape;
}

}  // namespace

PlanShape read_hf_shape(const std::string& path) {
  const HfConfig config(path);
  for (const char* key : {"num_local_experts", "num_experts", "n_routed_experts"}) {
    if (config.has(key)) {
      config.fail_type(key, "a model without experts; give --model a number of parameters (47B)");
    }
  }
  const std::string type = config.text("model_type", config.has("n_embd") ? "gpt2" : "");
  if (type == "gpt2") return shape_of_gpt2(config);
  std::vector<std::string_view> known = {"gpt2"};
  for (const HfKind& kind : kHfKinds) {
    if (kind.type == type) return shape_of_llama(config, kind);
    known.push_back(kind.type);
  }
  const std::string expected =
      fmt::format("one of {}; of another model give --model the number of parameters (7B)",
                  fmt::join(known, ", "));
  if (config.has("model_type")) config.fail_type("model_type", expected);
  fail<ConfigError>("{}: /model_type is missing: expected {}", path, expected);
}

}  // namespace zerorun
