#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace zerorun::train {

class HfConfig;

// The shape of a GPT-2: what the config.json of a Hugging Face GPT-2 says.
struct GptConfig {
  int64_t vocabulary = 0;    // 0: that of the data
  int64_t positions = 1024;  // longest sequence
  int64_t width = 768;       // n_embd
  int64_t layers = 12;
  int64_t heads = 12;
  int64_t inner = 4 * width;  // of the feed-forward part
  float layer_norm_epsilon = 1e-5F;

  bool operator==(const GptConfig&) const = default;
};

// The sizes of the bundled models: "nano, mini, gpt2, gpt2-medium, gpt2-large, gpt2-xl".
std::string preset_names();
// Returns ` (did you mean "gpt2"?)`, or nothing when no bundled model's name is near.
std::string suggest_preset(std::string_view name);
// One of them, or nothing for another name. Leaves the vocabulary to the data.
std::optional<GptConfig> gpt_preset(const std::string& name);

// A preset, or the path of a config.json with the keys of Hugging Face's GPT2Config. A file without
// "vocab_size" leaves the vocabulary to the data too. Throws ConfigError or IoError naming the
// presets, or the file and the key that is missing, misspelt, or has another meaning here.
GptConfig gpt_config(const std::string& model);
GptConfig gpt_config(const HfConfig& config);
// The sizes alone, also of a GPT-2 that this program does not train, such as one with another
// activation function.
GptConfig read_gpt_shape(const HfConfig& config);

// The text of a config.json that Hugging Face's GPT2LMHeadModel reads.
std::string to_json(const GptConfig& config);

int64_t parameter_count(const GptConfig& config);

}  // namespace zerorun::train
