#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

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

}  // namespace zerorun::train
