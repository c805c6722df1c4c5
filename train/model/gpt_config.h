#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace zerorun::train {

// The config.json of a Hugging Face model. Reading a key that is missing, has another type or is
// out of range throws ConfigError that names the file and the key.
class HfConfig {
 public:
  // `source` is the name of the file in messages.
  HfConfig(const std::string& json_text, std::string source);
  static HfConfig read(const std::string& path);

  const std::string& source() const { return source_; }
  const nlohmann::json& json() const { return json_; }
  // A key with value null counts as missing.
  bool has(const char* key) const { return json_.contains(key) && !json_.at(key).is_null(); }
  // Returns an integer from 1 to `high`. The key is required unless a fallback is given.
  int64_t integer(const char* key, int64_t high, std::optional<int64_t> fallback = {}) const;
  bool boolean(const char* key, bool fallback) const;
  std::string text(const char* key, const char* fallback) const;
  // Throws ConfigError that names the key, its value and what was expected.
  [[noreturn]] void fail_value(const std::string& key, const std::string& expected) const;

 private:
  std::string source_;
  nlohmann::json json_;
};

// The shape of a GPT-2, as in the config.json of a Hugging Face GPT-2.
struct GptConfig {
  int64_t vocabulary = 0;    // 0: use that of the data
  int64_t positions = 1024;  // maximum length of a sequence
  int64_t width = 768;       // n_embd
  int64_t layers = 12;
  int64_t heads = 12;
  int64_t inner = 4 * width;  // width of the feed-forward part
  float layer_norm_epsilon = 1e-5F;

  bool operator==(const GptConfig&) const = default;
};

// Returns the names of the bundled models: "nano, mini, gpt2, gpt2-medium, gpt2-large, gpt2-xl".
std::string preset_names();
// Returns ` (did you mean "gpt2"?)`, or "" if no name of a bundled model is similar.
std::string suggest_preset(std::string_view name);
// Returns the bundled model of that name, or nullopt. The vocabulary is that of the data.
std::optional<GptConfig> gpt_preset(const std::string& name);

// Returns a bundled model, or reads a config.json with the keys of Hugging Face's GPT2Config;
// without "vocab_size" the vocabulary is that of the data. Throws ConfigError or IoError that names
// the bundled models, or the file and the key that is missing, misspelt or not supported.
GptConfig gpt_config(const std::string& model);
GptConfig gpt_config(const HfConfig& config);
// Reads only the sizes, also of a GPT-2 that this program cannot train, such as one with another
// activation function.
GptConfig read_gpt_shape(const HfConfig& config);

// Returns the text of a config.json for Hugging Face's GPT2LMHeadModel.
std::string to_json(const GptConfig& config);

int64_t parameter_count(const GptConfig& config);

// Returns the floating point operations of forward and backward per token: 6 per weight of a matrix
// product, and 12 * layers * width * seq_len for attention (Chowdhery et al. 2022, appendix B).
// Recomputation and skipped parts of masked attention do not change the number.
double flops_per_token(const GptConfig& config, int64_t seq_len);

}  // namespace zerorun::train
