#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "config/conflicts.h"
#include "config/key_status.h"
#include "core/check.h"
#include "zerorun/config.h"

namespace zerorun {

namespace {

std::string read_file(const std::string& path) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (!file) {
    fail<ConfigError>("{}: cannot be read: {}; expected a JSON file", path, std::strerror(errno));
  }
  std::string text;
  char block[64 << 10];
  while (const size_t bytes = std::fread(block, 1, sizeof(block), file.get())) {
    text.append(block, bytes);
    if (text.size() > kMaxJsonBytes) {
      fail<ConfigError>("{}: longer than {} bytes; expected a configuration", path, kMaxJsonBytes);
    }
  }
  if (std::ferror(file.get()) != 0) {
    fail<ConfigError>("{}: cannot be read: {}; expected a JSON file", path, std::strerror(errno));
  }
  return text;
}

void apply(const GivenKeys& keys, Config& config) {
  for (const auto& [pointer, key] : keys) {
    const JsonNode* value = given_value(key);
    if (value != nullptr && key.spec->binding.set != nullptr) {
      key.spec->binding.set(config, *value);
    }
  }
  if (given_value(keys, "/zero_optimization/overlap_comm") == nullptr) {
    config.zero.overlap_comm = config.zero.stage == 3;  // DeepSpeed 0.19, zero/config.py
  }
}

std::vector<ConfigValue> list_values(const KeyTable& table, const GivenKeys& keys,
                                     const Config& config) {
  std::vector<ConfigValue> values;
  for (const KeySpec* spec : table.keys()) {
    const bool is_written = keys.contains(spec->pointer);
    if (spec->is_block() || (!is_written && spec->binding.get == nullptr)) continue;
    const JsonNode* given = given_value(keys, spec->pointer);
    ConfigValue value{.pointer = std::string(spec->pointer), .value = std::string(spec->fallback)};
    if (spec->binding.get != nullptr) {
      value.value = spec->binding.get(config);
    } else if (given != nullptr) {
      value.value = to_text(*given);
    }
    value.is_default = given == nullptr || value.value == spec->fallback;
    values.push_back(std::move(value));
  }
  return values;
}

}  // namespace

ParsedConfig parse_config(std::string_view json, std::string source) {
  const KeyTable& table = key_table();
  ConfigProblems problems(source);
  std::optional<JsonNode> root = read_json(json, problems);
  if (!root) {
    problems.throw_if_any();
    fail<InternalError>("{}: was not read, without a reason", source);
  }
  ParsedConfig parsed;
  const GivenKeys keys = check_keys(table, *root, problems);
  check_statuses(table, keys, problems, parsed.warnings);
  check_conflicts(keys, problems);
  problems.throw_if_any();

  apply(keys, parsed.config);
  parsed.config.source = std::move(source);
  parsed.values = list_values(table, keys, parsed.config);
  return parsed;
}

ParsedConfig load_config(const std::string& path) { return parse_config(read_file(path), path); }

}  // namespace zerorun
