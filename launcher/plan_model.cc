#include "launcher/plan_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "checkpoint/file.h"
#include "core/check.h"

namespace zerorun {

namespace {

using Json = nlohmann::json;

// A transformer: blocks of attention and feed-forward between two embeddings.
struct Shape {
  int64_t vocabulary = 50257;
  int64_t positions = 0;  // 0: none are learned
  int64_t width = 0;
  int64_t layers = 0;
  int64_t heads = 1;
  int64_t key_value_width = 0;
  int64_t inner = 0;
  bool gated = false;      // three matrices in the feed-forward part, and no biases
  bool tied = true;        // the head is the embedding
  bool is_bundled = true;  // the bundled program trains it
};

struct Preset {
  std::string_view name;
  int64_t layers;
  int64_t width;
  int64_t heads;
  int64_t positions;
};

// Those of examples/train (a test compares).
constexpr auto kPresets = std::to_array<Preset>({
    {"nano", 4, 128, 4, 256},
    {"mini", 6, 384, 6, 256},
    {"gpt2", 12, 768, 12, 1024},
    {"gpt2-medium", 24, 1024, 16, 1024},
    {"gpt2-large", 36, 1280, 20, 1024},
    {"gpt2-xl", 48, 1600, 25, 1024},
});

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

std::vector<ParameterSpec> specs_of(const Shape& shape) {
  const bool bias = !shape.gated;
  Builder builder;
  builder.begin("embeddings");
  builder.add("tokens", {shape.vocabulary, shape.width});
  if (shape.positions > 0) builder.add("positions", {shape.positions, shape.width});
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    builder.begin(fmt::format("h.{}", layer));
    builder.add_norm("norm_1", shape.width, bias);
    builder.add_linear("attention", shape.width, shape.width + 2 * shape.key_value_width, bias);
    builder.add_linear("projection", shape.width, shape.width, bias);
    builder.add_norm("norm_2", shape.width, bias);
    builder.add_linear("up", shape.width, shape.inner, bias);
    if (shape.gated) builder.add_linear("gate", shape.width, shape.inner, bias);
    builder.add_linear("down", shape.inner, shape.width, bias);
  }
  builder.begin("ln_f");
  builder.add_norm("norm", shape.width, bias);
  if (!shape.tied) {
    builder.begin("head");
    builder.add("weight", {shape.vocabulary, shape.width});
  }
  return builder.specs;
}

// examples/train/activations.cc (a test compares).
double activations_per_token(const Shape& shape, bool recompute) {
  const auto width = static_cast<double>(shape.width);
  const auto inner = static_cast<double>(shape.inner);
  const auto layers = static_cast<double>(shape.layers);
  const double block = 4.0 + 5.0 * width + static_cast<double>(shape.heads) + inner;
  const double scratch = 2.0 * width + inner + std::max(inner, 3.0 * width);
  const double residual = (layers + 1.0) * width;
  const double head = 2.0 + static_cast<double>(shape.vocabulary) + width;
  return ((recompute ? 1.0 : layers) * block + scratch + residual + head) * sizeof(float);
}

PlanModel model_of(const Shape& shape, const std::string& name) {
  PlanModel model;
  model.specs = specs_of(shape);
  model.hidden_size = shape.width;
  if (shape.is_bundled) {
    model.activation_nbytes_per_token = activations_per_token(shape, false);
    model.recomputed_nbytes_per_token = activations_per_token(shape, true);
  }
  double numel = 0;
  for (const ParameterSpec& spec : model.specs) {
    double product = 1;
    for (const int64_t size : spec.shape) product *= static_cast<double>(size);
    numel += product;
  }
  model.description = fmt::format("{}: {:.1f} M parameters", name, numel / 1e6);
  return model;
}

// The first of `keys` that the file has.
int64_t read(const Json& json, const std::string& source, std::initializer_list<const char*> keys,
             std::optional<int64_t> fallback = {}) {
  for (const char* key : keys) {
    const auto found = json.find(key);
    if (found == json.end() || found->is_null()) continue;
    constexpr int64_t kMax = 1 << 24;
    if (found->is_number_integer() && *found >= 1 && *found <= kMax) return found->get<int64_t>();
    fail<ConfigError>("{}: /{} is {}: expected an integer from 1 to {}", source, key, found->dump(),
                      kMax);
  }
  if (fallback) return *fallback;
  fail<ConfigError>(
      "{}: /{} is missing: expected the config.json of a Hugging Face GPT-2, or of a model of the "
      "Llama kind",
      source, *keys.begin());
}

Shape shape_of_file(const std::string& path) {
  constexpr uint64_t kMaxNbytes = 1 << 20;
  const Json json = Json::parse(read_text(path, kMaxNbytes), nullptr, false);
  if (!json.is_object()) fail<ConfigError>("{}: not a JSON object", path);
  Shape shape;
  shape.is_bundled = json.value("model_type", "gpt2") == "gpt2" && json.contains("n_embd");
  shape.width = read(json, path, {"n_embd", "hidden_size"});
  shape.layers = read(json, path, {"n_layer", "num_hidden_layers"});
  shape.heads = read(json, path, {"n_head", "num_attention_heads"});
  shape.vocabulary = read(json, path, {"vocab_size"}, 50257);
  shape.gated = !json.contains("n_embd");
  const int64_t key_value_heads = read(json, path, {"num_key_value_heads"}, shape.heads);
  const int64_t head_width = read(json, path, {"head_dim"}, shape.width / shape.heads);
  shape.key_value_width = key_value_heads * head_width;
  shape.inner = read(json, path, {"n_inner", "intermediate_size"},
                     shape.gated ? std::nullopt : std::optional<int64_t>(4 * shape.width));
  shape.positions = shape.gated ? 0 : read(json, path, {"n_positions"}, 1024);
  shape.tied = json.value("tie_word_embeddings", !shape.gated);
  return shape;
}

// "350M", "1.3B", "124000000".
std::optional<double> parse_count(std::string_view text) {
  double count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || !(count > 0)) return std::nullopt;
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  if (unit == "K" || unit == "k") return count * 1e3;
  if (unit == "M" || unit == "m") return count * 1e6;
  if (unit == "B" || unit == "b") return count * 1e9;
  if (unit == "T" || unit == "t") return count * 1e12;
  return unit.empty() ? std::optional(count) : std::nullopt;
}

// Blocks of 12 width^2 parameters, as wide as models of that size are: layers = width / 80.
Shape shape_of_count(double count) {
  Shape shape;
  shape.is_bundled = false;
  shape.vocabulary = 1;
  const double width = std::cbrt(count * 80.0 / 12.0);
  shape.layers = std::max<int64_t>(1, std::llround(width / 80.0));
  shape.width = std::max<int64_t>(
      1, std::llround(std::sqrt(count / 12.0 / static_cast<double>(shape.layers))));
  shape.key_value_width = shape.width;
  shape.inner = 4 * shape.width;
  return shape;
}

}  // namespace

PlanModel plan_model(const std::string& name) {
  for (const Preset& preset : kPresets) {
    if (preset.name != name) continue;
    Shape shape;
    // The bundled program's default text is read as bytes; the GPT-2 sizes are tokenised.
    shape.vocabulary = name.starts_with("gpt2") ? 50257 : 256;
    shape.positions = preset.positions;
    shape.width = shape.key_value_width = preset.width;
    shape.layers = preset.layers;
    shape.heads = preset.heads;
    shape.inner = 4 * preset.width;
    return model_of(shape, name);
  }
  if (std::filesystem::exists(name)) return model_of(shape_of_file(name), name);
  if (const auto count = parse_count(name)) return model_of(shape_of_count(*count), name);
  fail<ConfigError>(
      "--model '{}': expected nano, mini, gpt2, gpt2-medium, gpt2-large, gpt2-xl, the path of a "
      "Hugging Face config.json, or a number of parameters (350M, 1.3B)",
      name);
}

}  // namespace zerorun
