#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "config/checks/check.h"
#include "config/conflicts.h"
#include "config/derive.h"
#include "config/elasticity.h"
#include "config/json/reader.h"
#include "core/check.h"
#include "core/printable.h"
#include "os/text_file.h"
#include "zerorun/config.h"

namespace zerorun {

namespace {

std::vector<ConfigValue> list_values(const GivenKeys& keys, const Config& config) {
  std::vector<ConfigValue> values;
  for (const KeySpec* spec : key_table().keys()) {
    const bool is_written = keys.contains(spec->pointer);
    if (spec->is_block() || (!is_written && spec->binding.get == nullptr)) continue;
    const std::string_view type = type_for(keys, *spec).value_or("");
    if (!spec->is_used_by(type)) continue;
    const JsonNode* given = given_value(keys, spec->pointer);
    ConfigValue value{.pointer = std::string(spec->pointer),
                      .value = std::string(spec->fallback_for(type)),
                      .fallback = std::string(spec->fallback_for(type))};
    if (spec->binding.get != nullptr) {
      value.value = spec->binding.get(config);
    } else if (given != nullptr) {
      value.value = to_text(*given);
    }
    value.is_default = given == nullptr || value.value == value.fallback;
    value.is_given = is_written;
    if (is_written) {
      const JsonNode& node = *keys.at(spec->pointer).node;
      value.is_auto = is_auto(*spec, node);
      value.line = node.where.line;
      value.column = node.where.column;
    }
    values.push_back(std::move(value));
  }
  return values;
}

// DeepSpeed's OneCycle warns about optimizers without betas, too.
void warn_of_momentum(ParsedConfig& parsed) {
  const SchedulerConfig& scheduler = parsed.config.scheduler;
  const std::string& optimizer = parsed.config.optimizer.type;
  if (scheduler.type == "OneCycle" && scheduler.one_cycle.cycle_momentum &&
      !key_table().find("/optimizer/params/betas")->is_used_by(optimizer)) {
    parsed.warnings.push_back(fmt::format(
        "/scheduler/params/cycle_momentum: no momentum cycles with {}, which has no betas",
        optimizer));
  }
}

// Warns about batch keys that are ignored because of /elasticity/ignore_non_elastic_batch_info.
void warn_of_elasticity(const GivenKeys& keys, ParsedConfig& parsed) {
  if (!elasticity_of(keys).enabled) return;
  for (const std::string_view key : kBatchKeys) {
    if (given_value(keys, key) == nullptr) continue;
    parsed.warnings.push_back(fmt::format("{}: /elasticity computes it instead", key));
  }
}

// A text that is not JSON may be Hjson; one that is neither is reported as JSON.
JsonNode read_root(std::string_view json, const std::string& source, ConfigProblems& problems) {
  if (auto root = read_json(json, problems)) return std::move(*root);
  ConfigProblems of_hjson(source);
  if (auto root = read_json(json, of_hjson, JsonDialect::hjson)) {
    problems = std::move(of_hjson);
    return std::move(*root);
  }
  problems.throw_if_any();
  fail<InternalError>("{}: was not read, without a reason", source);
}

struct ConfigText {
  std::string json;
  std::string source;
};

ConfigText find_text(const std::string& path) {
  std::string text;
  const int error = try_read_text(path, kMaxJsonBytes, text);
  if (error == 0) return {std::move(text), path};
  if (error == EFBIG) {
    fail<ConfigError>("{}: longer than {} bytes; expected a configuration", printable(path),
                      kMaxJsonBytes);
  }
  std::optional<std::string> json = decode_base64url(path);
  if (json && json->starts_with(kByteOrderMark)) json->erase(0, kByteOrderMark.size());
  if (!json || !json->starts_with('{')) {
    fail<ConfigError>("{}: cannot be read: {}; expected a JSON file, or the base64 text of one",
                      printable(path), std::strerror(error));
  }
  return {std::move(*json), "<base64>"};
}

}  // namespace

std::optional<std::string> decode_base64url(std::string_view text) {
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  const size_t digits = text.find_last_not_of('=') + 1;  // 0 when there are none
  const bool is_padded = digits != text.size();
  if (digits % 4 == 1 || text.size() - digits > 2 || (is_padded && text.size() % 4 != 0)) {
    return std::nullopt;
  }
  std::string out;
  out.reserve(digits * 3 / 4);
  uint32_t bits = 0;
  for (size_t i = 0; i < digits; ++i) {
    const size_t value = kAlphabet.find(text[i]);
    if (value == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(value);
    if (i % 4 == 3) {
      out += {static_cast<char>(bits >> 16), static_cast<char>(bits >> 8), static_cast<char>(bits)};
    }
  }
  if (digits % 4 >= 2) out += static_cast<char>(bits >> (digits % 4 == 2 ? 4 : 10));
  if (digits % 4 == 3) out += static_cast<char>(bits >> 2);
  return out;
}

ParsedConfig parse_config_for(ConfigReader reader, std::string_view json, std::string source) {
  ConfigProblems problems(source);
  JsonNode root = read_root(json, source, problems);
  ParsedConfig parsed;
  const GivenKeys keys = check_keys(root, problems, parsed.warnings, reader);
  parsed.config = derive_config(keys);
  check_conflicts(keys, parsed.config, problems);
  problems.throw_if_any();

  parsed.config.source = std::move(source);
  parsed.values = list_values(keys, parsed.config);
  mark_unresolved(parsed);
  warn_of_momentum(parsed);
  warn_of_elasticity(keys, parsed);
  return parsed;
}

ParsedConfig load_config_for(ConfigReader reader, const std::string& path) {
  ConfigText text = find_text(path);
  return parse_config_for(reader, text.json, std::move(text.source));
}

ParsedConfig parse_config(std::string_view json, std::string source) {
  return parse_config_for(ConfigReader::cpp, json, std::move(source));
}

ParsedConfig load_config(const std::string& path) {
  return load_config_for(ConfigReader::cpp, path);
}

std::string plain_config_json(const std::string& path) {
  const ConfigText text = find_text(path);
  ConfigProblems problems(text.source);
  const JsonNode root = read_root(text.json, text.source, problems);
  problems.throw_if_any();
  return to_text(root);
}

}  // namespace zerorun
