#include "train/model/hf_config.h"

#include <utility>

#include "core/check.h"
#include "core/printable.h"
#include "os/text_file.h"

namespace zerorun::train {

HfConfig::HfConfig(const std::string& json_text, std::string source)
    : source_(std::move(source)),
      json_(nlohmann::json::parse(json_text, nullptr, /*allow_exceptions=*/false)) {
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
