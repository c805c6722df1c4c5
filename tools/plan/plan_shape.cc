#include "tools/plan/plan_shape.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "core/check.h"
#include "train/model/hf_config.h"

namespace zerorun {

namespace {

using train::HfConfig;

// A model_type, and the defaults of keys that its file may omit.
struct HfKind {
  std::string_view type;
  bool tied;
  bool query_bias;
  int64_t head_width = 0;  // 0: width / heads
  bool head_norms = false;
};

// Llama-like models whose parameters the formula covers; gpt2 is handled separately.
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

// Computes the widths of attention from the heads.
void set_heads(const HfConfig& config, int64_t heads, int64_t key_value_heads, int64_t head_width,
               const char* key, PlanShape& shape) {
  const int64_t width = head_width > 0 ? head_width : shape.width / heads;
  if (head_width == 0 && shape.width % heads != 0) {
    config.fail_value(key, fmt::format("a divisor of the width, {}", shape.width));
  }
  shape.query_width = heads * width;
  shape.key_value_width = key_value_heads * width;
  if (std::max(shape.query_width, shape.key_value_width) > kMaxWidth) {
    config.fail_value(key, fmt::format("at most {} elements in all heads", kMaxWidth));
  }
}

PlanShape shape_of_gpt2(const HfConfig& config) {
  constexpr int64_t kVocabulary = 50257;  // default of vocab_size
  train::GptConfig gpt = read_gpt_shape(config);
  if (gpt.layers > kMaxLayers) {
    config.fail_value("n_layer", fmt::format("an integer from 1 to {}", kMaxLayers));
  }
  if (gpt.vocabulary == 0) gpt.vocabulary = kVocabulary;
  PlanShape shape = shape_of(gpt);
  shape.tied = config.boolean("tie_word_embeddings", true);
  if (!shape.tied) shape.bundled.reset();
  return shape;
}

PlanShape shape_of_llama(const HfConfig& config, const HfKind& kind) {
  PlanShape shape;
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

PlanShape shape_of(const train::GptConfig& gpt) {
  PlanShape shape;
  shape.vocabulary = gpt.vocabulary;
  shape.positions = gpt.positions;
  shape.width = shape.query_width = shape.key_value_width = gpt.width;
  shape.layers = gpt.layers;
  shape.inner = gpt.inner;
  shape.bundled = gpt;
  return shape;
}

PlanShape read_hf_shape(const std::string& path) {
  const HfConfig config = HfConfig::read(path);
  for (const char* key : {"num_local_experts", "num_experts", "n_routed_experts"}) {
    if (config.has(key)) {
      config.fail_value(key, "a model without experts; give --model a number of parameters (47B)");
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
  if (config.has("model_type")) config.fail_value("model_type", expected);
  fail<ConfigError>("{}: /model_type is missing: expected {}", path, expected);
}

}  // namespace zerorun
