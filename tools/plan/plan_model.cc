#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/check.h"
#include "core/parse_number.h"
#include "tools/plan/plan.h"
#include "train/model/activations.h"
#include "train/model/gpt_config.h"

namespace zerorun {

namespace {

// The parameters of one kind of block.
struct BlockKind {
  bool gated = false;  // gated feed-forward part with three matrices, and norms without biases
  bool query_bias = true;
  bool output_bias = true;
  bool inner_bias = true;
  int64_t head_norm = 0;  // width of the norms of queries and of keys; 0: none
};

// A transformer: blocks of attention and feed-forward between two embeddings.
struct PlanShape {
  int64_t vocabulary = 50257;
  int64_t positions = 0;  // number of learned positions; 0: none
  int64_t width = 0;
  int64_t layers = 0;
  int64_t query_width = 0;  // number of heads * width of a head
  int64_t key_value_width = 0;
  int64_t inner = 0;
  BlockKind block = {};
  bool tied = true;  // the output head shares the embedding
  // configuration for the bundled program, if it can train the model
  std::optional<train::GptConfig> bundled = {};
};

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

constexpr double kMaxParameters = 1e15;

class Builder {
 public:
  std::vector<ParameterSpec> specs;

  void begin(std::string module) { module_ = std::move(module); }
  void add(const std::string& name, std::vector<int64_t> shape) {
    ParameterSpec spec;
    spec.name = fmt::format("{}.{}", module_, name);
    spec.group = shape.size() > 1 ? 0 : 1;
    spec.shape = std::move(shape);
    spec.module = module_;
    specs.push_back(std::move(spec));
  }
  void add_linear(const std::string& name, int64_t in, int64_t out, bool bias) {
    add(name + ".weight", {in, out});
    specs.back().use_muon = true;
    if (bias) add(name + ".bias", {out});
  }
  void add_norm(const std::string& name, int64_t width, bool bias) {
    add(name + ".weight", {width});
    if (bias) add(name + ".bias", {width});
  }

 private:
  std::string module_;
};

std::vector<ParameterSpec> specs_of(const PlanShape& shape) {
  const BlockKind& block = shape.block;
  const bool norm_bias = !block.gated;
  Builder builder;
  builder.begin("embeddings");
  builder.add("tokens", {shape.vocabulary, shape.width});
  if (shape.positions > 0) builder.add("positions", {shape.positions, shape.width});
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    builder.begin(fmt::format("h.{}", layer));
    builder.add_norm("norm_1", shape.width, norm_bias);
    builder.add_linear("attention", shape.width, shape.query_width + 2 * shape.key_value_width,
                       block.query_bias);
    if (block.head_norm > 0) {
      builder.add_norm("query_norm", block.head_norm, false);
      builder.add_norm("key_norm", block.head_norm, false);
    }
    builder.add_linear("projection", shape.query_width, shape.width, block.output_bias);
    builder.add_norm("norm_2", shape.width, norm_bias);
    builder.add_linear("up", shape.width, shape.inner, block.inner_bias);
    if (block.gated) builder.add_linear("gate", shape.width, shape.inner, block.inner_bias);
    builder.add_linear("down", shape.inner, shape.width, block.inner_bias);
  }
  builder.begin("ln_f");
  builder.add_norm("norm", shape.width, norm_bias);
  if (!shape.tied) {
    builder.begin("head");
    builder.add("weight", {shape.vocabulary, shape.width});
  }
  return builder.specs;
}

PlanModel model_of(const PlanShape& shape, const std::string& name, DType activations) {
  PlanModel model;
  model.specs = specs_of(shape);
  model.hidden_size = shape.width;
  if (shape.bundled) {
    model.heads = shape.bundled->heads;
    model.activation_nbytes_per_token =
        train::activation_nbytes_per_token(*shape.bundled, /*recompute=*/false, activations);
    model.recomputed_nbytes_per_token =
        train::activation_nbytes_per_token(*shape.bundled, /*recompute=*/true, activations);
    model.logits_row_nbytes =
        static_cast<double>(shape.bundled->vocabulary) * static_cast<double>(size_of(activations));
  }
  double numel = 0;
  for (const ParameterSpec& spec : model.specs) {
    double product = 1;
    for (const int64_t size : spec.shape) product *= static_cast<double>(size);
    numel += product;
  }
  constexpr double kRounding = 1.05;  // a number of parameters becomes whole layers
  if (numel > kRounding * kMaxParameters) {
    fail<ConfigError>("{}: {:.1e} parameters; expected at most {:.0e}", name, numel,
                      kMaxParameters);
  }
  model.description = fmt::format("{}: {:.1f} M parameters", name, numel / 1e6);
  return model;
}

// "350M", "1.3B", "124000000".
std::optional<double> parse_count(const std::string& text) {
  std::string_view unit = text;
  std::optional<double> count = take_number<double>(unit);
  const double factor = unit.empty()                 ? 1.0
                        : unit == "K" || unit == "k" ? 1e3
                        : unit == "M" || unit == "m" ? 1e6
                        : unit == "B" || unit == "b" ? 1e9
                        : unit == "T" || unit == "t" ? 1e12
                                                     : 0.0;
  if (!count || factor == 0.0) return std::nullopt;
  *count *= factor;
  if (!(*count >= 1 && *count <= kMaxParameters)) {
    fail<ConfigError>("--model '{}': expected from 1 to {:.0e} parameters", text, kMaxParameters);
  }
  return count;
}

// Builds a typical shape from a number of parameters: blocks of 12 width^2 parameters with layers =
// width / 80.
PlanShape shape_of_count(double count) {
  PlanShape shape;
  shape.vocabulary = 1;
  const double width = std::cbrt(count * 80.0 / 12.0);
  shape.layers = std::max<int64_t>(1, std::llround(width / 80.0));
  shape.width = std::max<int64_t>(
      1, std::llround(std::sqrt(count / 12.0 / static_cast<double>(shape.layers))));
  shape.query_width = shape.key_value_width = shape.width;
  shape.inner = 4 * shape.width;
  return shape;
}

}  // namespace

PlanModel plan_model(const std::string& name, DType activations) {
  if (std::optional<train::GptConfig> gpt = train::gpt_preset(name)) {
    // The bundled program's default text is read as bytes; the GPT-2 sizes are tokenised.
    gpt->vocabulary = name.starts_with("gpt2") ? 50257 : 256;
    return model_of(shape_of(*gpt), name, activations);
  }
  std::error_code error;
  if (std::filesystem::exists(name, error) || (error && error != std::errc::filename_too_long)) {
    if (!error && !std::filesystem::is_regular_file(name)) {
      fail<ConfigError>("--model {}: expected a file, a Hugging Face config.json", name);
    }
    return model_of(read_hf_shape(name), name, activations);
  }
  if (const auto count = parse_count(name)) {
    return model_of(shape_of_count(*count), name, activations);
  }
  fail<ConfigError>(
      "--model '{}'{}: expected {}, the path of a Hugging Face config.json, or a number of "
      "parameters (350M, 1.3B)",
      name, train::suggest_preset(name), train::preset_names());
}

}  // namespace zerorun
