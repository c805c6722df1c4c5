#include "checkpoint/format/manifest.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

#include "checkpoint/files/file.h"
#include "checkpoint/files/layout.h"
#include "checkpoint/format/json_reader.h"
#include "checkpoint/format/shard_file.h"
#include "core/check.h"
#include "zerorun/loss_scaler.h"
#include "zerorun/version.h"

namespace zerorun {

namespace {

// The text ends with its own hash, so that the rest can be hashed as one chunk.
constexpr std::string_view kHashPrefix = ",\n  \"xxh3\": \"";
constexpr std::string_view kHashSuffix = "\"\n}\n";
constexpr size_t kHashNbytes = kHashPrefix.size() + kHexDigits + kHashSuffix.size();
constexpr int64_t kMaxRanks = 1 << 20;
constexpr int64_t kMaxBlock = 1 << 20;
constexpr int64_t kMaxFileNbytes = std::numeric_limits<int64_t>::max() / 2;

nlohmann::ordered_json encode_parameter(const Manifest::Parameter& parameter) {
  if (!parameter.alias_of.empty()) {
    return {{"name", parameter.name}, {"alias_of", parameter.alias_of}};
  }
  nlohmann::ordered_json json = {{"name", parameter.name},
                                 {"shape", parameter.shape},
                                 {"dtype", name_of(parameter.dtype)},
                                 {"trainable", parameter.trainable},
                                 {"group", parameter.group},
                                 {"states", parameter.states}};
  if (!parameter.saved) json["saved"] = false;
  return json;
}

nlohmann::ordered_json encode_state(const StateSpec& state) {
  return {{"name", state.name}, {"dtype", name_of(state.dtype)}, {"block", state.block}};
}

// Says what no optimizer accepts; empty when all is well.
std::string problem_of(const ParameterGroup& group) {
  constexpr double kMin = -1e-6;  // a schedule that ends at 0 may miss it by its rounding
  constexpr double kMax = std::numeric_limits<double>::max();
  const auto check = [](const char* name, double value, double low, double high) -> std::string {
    if (value >= low && value <= high) return {};  // not so for NaN
    return fmt::format("'{}' is {}; expected {}", name, value,
                       high == 1.0 ? "0 to 1" : "a finite value of 0 or more");
  };
  std::string problem = check("lr", group.lr, kMin, kMax);
  if (problem.empty()) problem = check("weight_decay", group.weight_decay, kMin, kMax);
  if (problem.empty()) problem = check("beta1", group.beta1.value_or(0), 0.0, 1.0);
  if (problem.empty()) problem = check("beta2", group.beta2.value_or(0), 0.0, 1.0);
  if (problem.empty()) problem = check("eps", group.eps.value_or(0), 0.0, kMax);
  return problem;
}

nlohmann::ordered_json encode_group(const ParameterGroup& group) {
  const std::string problem = problem_of(group);
  if (!problem.empty()) fail<ConfigError>("parameter group '{}': {}", group.name, problem);
  // As double: the shortest text of a double gives every float back exactly.
  nlohmann::ordered_json json = {
      {"name", group.name}, {"lr", double{group.lr}}, {"weight_decay", double{group.weight_decay}}};
  if (group.beta1) json["beta1"] = *group.beta1;
  if (group.beta2) json["beta2"] = *group.beta2;
  if (group.eps) json["eps"] = double{*group.eps};
  return json;
}

nlohmann::ordered_json encode_shard(const Manifest::ShardFile& shard) {
  nlohmann::ordered_json json = {{"name", shard.name},
                                 {"nbytes", shard.nbytes},
                                 {"header_nbytes", shard.header_nbytes},
                                 {"header_xxh3", to_hex(shard.header_hash)}};
  if (!shard.host.empty()) json["host"] = shard.host;
  return json;
}

nlohmann::ordered_json encode_loss_scaler(const LossScalerState& state) {
  return {{"cur_scale", state.cur_scale},
          {"cur_iter", state.cur_iter},
          {"last_overflow_iter", state.last_overflow_iter},
          {"cur_hysteresis", state.cur_hysteresis}};
}

EngineProgress decode_progress(const JsonReader& top) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EngineProgress progress;
  progress.step_count = top.integer("step", 0, kMax);
  progress.skipped_steps = top.integer("skipped_steps", 0, kMax);
  if (!top.has("loss_scaler")) return progress;
  const JsonReader scaler = top.object("loss_scaler");
  progress.loss_scaler = {.cur_scale = scaler.real("cur_scale"),
                          .cur_iter = scaler.integer("cur_iter", 0, kMax),
                          .last_overflow_iter = scaler.integer("last_overflow_iter", -1, kMax),
                          .cur_hysteresis = scaler.integer("cur_hysteresis", 1, kMax)};
  try {
    LossScaler({}).load_state(*progress.loss_scaler);
  } catch (const ConfigError& error) {
    scaler.fail(error.what());
  }
  return progress;
}

// The text without its hash.
std::string_view checked_body(std::string_view text, const std::string& file) {
  const bool complete = text.size() > kHashNbytes && text.ends_with(kHashSuffix) &&
                        text.substr(text.size() - kHashNbytes).starts_with(kHashPrefix);
  if (!complete) fail<CheckpointError>("{}: damaged or cut short: its hash is missing", file);
  const std::string_view body = text.substr(0, text.size() - kHashNbytes);
  const auto expected = from_hex(text.substr(body.size() + kHashPrefix.size(), kHexDigits));
  if (!expected || *expected != hash_of(body)) {
    fail<CheckpointError>("{}: damaged: its bytes have the hash {}, it was saved with {}", file,
                          to_hex(hash_of(body)),
                          text.substr(body.size() + kHashPrefix.size(), kHexDigits));
  }
  return body;
}

Manifest::Parameter decode_parameter(const JsonReader& json, int64_t states) {
  Manifest::Parameter parameter;
  parameter.name = plain_name(json.text("name"));
  if (json.has("alias_of")) {
    parameter.alias_of = plain_name(json.text("alias_of"));
    if (parameter.alias_of.empty()) json.fail("'alias_of' is empty");
    return parameter;
  }
  parameter.dtype = json.dtype("dtype");
  // Its fp32 master and states must be addressable too.
  parameter.shape = json.shape("shape", std::max(size_of(parameter.dtype), size_of(DType::fp32)));
  parameter.trainable = json.boolean("trainable");
  parameter.group = static_cast<int>(json.integer("group", 0, std::numeric_limits<int>::max()));
  for (const nlohmann::json& index : json.array("states")) {
    const int64_t low = parameter.states.empty() ? 0 : parameter.states.back() + 1;
    if (!index.is_number_unsigned() || index.get<int64_t>() < low ||
        index.get<int64_t>() >= states) {
      json.fail(fmt::format("'states' is not ascending or not below {}", states));
    }
    parameter.states.push_back(index.get<int>());
  }
  if (parameter.trainable == parameter.states.empty()) {
    json.fail("only trainable parameters have states, and all of them have");
  }
  if (json.has("saved")) parameter.saved = json.boolean("saved");
  if (parameter.trainable && !parameter.saved) json.fail("a trainable parameter was not saved");
  return parameter;
}

std::vector<Manifest::Parameter> decode_parameters(const JsonReader& top, const std::string& file,
                                                   size_t states, size_t groups) {
  std::vector<Manifest::Parameter> parameters;
  std::unordered_map<std::string, bool> is_alias;
  top.for_each("parameters", [&](const JsonReader& json) {
    parameters.push_back(decode_parameter(json, static_cast<int64_t>(states)));
    const Manifest::Parameter& parameter = parameters.back();
    if (parameter.alias_of.empty() && static_cast<size_t>(parameter.group) >= groups) {
      json.fail(fmt::format("'group' is {}, but there are {} groups", parameter.group, groups));
    }
    if (!is_alias.emplace(parameter.name, !parameter.alias_of.empty()).second) {
      json.fail(fmt::format("'{}' is listed twice", parameter.name));
    }
  });
  for (const Manifest::Parameter& parameter : parameters) {
    if (parameter.alias_of.empty()) continue;
    const auto target = is_alias.find(parameter.alias_of);
    if (target == is_alias.end() || target->second) {
      fail<CheckpointError>("{}: '{}' is an alias of '{}', which is not a parameter", file,
                            parameter.name, parameter.alias_of);
    }
  }
  return parameters;
}

std::vector<ParameterGroup> decode_groups(const JsonReader& top) {
  std::vector<ParameterGroup> groups;
  top.for_each("groups", [&](const JsonReader& json) {
    ParameterGroup group{.name = json.text("name"),
                         .lr = json.number("lr"),
                         .weight_decay = json.number("weight_decay")};
    if (json.has("beta1")) group.beta1 = json.real("beta1");
    if (json.has("beta2")) group.beta2 = json.real("beta2");
    if (json.has("eps")) group.eps = json.number("eps");
    const std::string problem = problem_of(group);
    if (!problem.empty()) json.fail(problem);
    groups.push_back(std::move(group));
  });
  return groups;
}

Manifest::ShardFile decode_shard(const JsonReader& json, bool (*is_name)(std::string_view)) {
  Manifest::ShardFile shard{.name = json.text("name")};
  if (!is_name(shard.name))
    json.fail(fmt::format("'{}' is not a file name of its own", shard.name));
  shard.nbytes = static_cast<uint64_t>(json.integer("nbytes", 0, kMaxFileNbytes));
  shard.header_nbytes =
      static_cast<uint64_t>(json.integer("header_nbytes", 0, static_cast<int64_t>(shard.nbytes)));
  shard.header_hash = json.hash("header_xxh3");
  if (json.has("host")) shard.host = json.text("host");
  return shard;
}

std::vector<Manifest::ShardFile> decode_shards(const JsonReader& top) {
  std::vector<Manifest::ShardFile> shards;
  std::set<std::string> names;
  top.for_each("files", [&](const JsonReader& json) {
    shards.push_back(decode_shard(json, is_shard_name));
    if (!names.insert(shards.back().name).second) {
      json.fail(fmt::format("'{}' is not a file name of its own", shards.back().name));
    }
  });
  return shards;
}

void check_version(const JsonReader& top) {
  if (top.text("format") != kFormatName) top.fail("this is not a zerorun checkpoint");
  const int64_t version = top.integer("version", 1, std::numeric_limits<int>::max());
  if (version != kFormatVersion) {
    top.fail(fmt::format(
        "format version {}, saved by zerorun {}; zerorun {} reads version {} only: {}", version,
        top.text("zerorun"), ZERORUN_VERSION, kFormatVersion,
        version < kFormatVersion
            ? "load it with the zerorun that saved it, and save the model there as safetensors "
              "(train's model.safetensors, save_16bit_model) to start from"
            : "use that zerorun or a newer one"));
  }
}

std::vector<StateSpec> decode_states(const JsonReader& top) {
  std::vector<StateSpec> states;
  std::set<std::string> names = {kParamKind};
  top.for_each("states", [&](const JsonReader& json) {
    states.push_back({.name = json.text("name"),
                      .dtype = json.dtype("dtype"),
                      .block = json.integer("block", 1, kMaxBlock)});
    if (size_of(states.back().dtype) > size_of(DType::fp32))
      json.fail("'dtype' is not one of states");
    if (states.back().name.find_first_of(".[") != std::string::npos) {
      json.fail("'name' has a '.' or '['");
    }
    if (!names.insert(states.back().name).second) {
      json.fail(fmt::format("'{}' is listed twice", states.back().name));
    }
  });
  return states;
}

// The indices of a parameter's states, adding what is not listed yet. As the optimizer's rules list
// their states in one order each, and no state belongs to two of them, the indices ascend.
std::vector<int> add_states(DType master_dtype, std::span<const StateSpec> of_optimizer,
                            std::vector<StateSpec>& states) {
  std::vector<StateSpec> own = {{kMasterKind, master_dtype}};
  own.insert(own.end(), of_optimizer.begin(), of_optimizer.end());
  std::vector<int> indices;
  for (const StateSpec& spec : own) {
    const auto found = std::find(states.begin(), states.end(), spec);
    indices.push_back(static_cast<int>(found - states.begin()));
    if (found == states.end()) states.push_back(spec);
  }
  return indices;
}

}  // namespace

int64_t Manifest::numel() const {
  int64_t numel = 0;
  for (const Parameter& parameter : parameters) {
    if (parameter.alias_of.empty()) numel += parameter.numel();
  }
  return numel;
}

int64_t Manifest::Parameter::numel() const { return checked_numel(shape, size_of(DType::fp32)); }

Manifest describe_model(std::span<const ParameterSpec> specs, DType param_dtype, DType master_dtype,
                        const StatesOf& states_of) {
  Manifest manifest;
  manifest.zerorun_version = ZERORUN_VERSION;
  for (const ParameterSpec& spec : specs) {
    const auto id = static_cast<ParameterId>(manifest.parameters.size());
    Manifest::Parameter parameter;
    parameter.name = spec.name;
    if (spec.alias_of.empty()) {
      parameter.shape = spec.shape;
      parameter.dtype = spec.dtype.value_or(param_dtype);
      parameter.trainable = spec.trainable;
      parameter.group = spec.group;
      if (spec.trainable) {
        parameter.states = add_states(master_dtype, states_of(id), manifest.states);
      }
    } else {
      parameter.alias_of = spec.alias_of;
    }
    manifest.parameters.push_back(std::move(parameter));
  }
  return manifest;
}

Manifest describe_engine(EngineStates& engine) {
  Manifest manifest =
      describe_model(engine.parameters(), engine.param_dtype(), engine.master_dtype(),
                     [&](ParameterId id) { return engine.state_specs(id); });
  manifest.progress = engine.progress();
  manifest.groups.assign(engine.groups().begin(), engine.groups().end());
  return manifest;
}

std::string encode_manifest(const Manifest& manifest) {
  nlohmann::ordered_json json = {{"format", kFormatName},
                                 {"version", kFormatVersion},
                                 {"zerorun", manifest.zerorun_version},
                                 {"step", manifest.progress.step_count},
                                 {"skipped_steps", manifest.progress.skipped_steps},
                                 {"world_size", manifest.shards.size()}};
  if (manifest.progress.loss_scaler) {
    json["loss_scaler"] = encode_loss_scaler(*manifest.progress.loss_scaler);
  }
  const auto add_array = [&json](const char* key, const auto& values, const auto& encode) {
    json[key] = nlohmann::ordered_json::array();
    for (const auto& value : values) json[key].push_back(encode(value));
  };
  add_array("states", manifest.states, encode_state);
  add_array("groups", manifest.groups, encode_group);
  add_array("parameters", manifest.parameters, encode_parameter);
  json["configuration"] = manifest.configuration;
  json["client_state"] = manifest.client_state;
  add_array("files", manifest.shards, encode_shard);
  if (manifest.buffers) json["buffers"] = encode_shard(*manifest.buffers);
  std::string text;
  try {
    text = json.dump(2);
  } catch (const nlohmann::json::exception& error) {
    fail<ConfigError>("a name or the client state of the checkpoint is not UTF-8: {}",
                      error.what());
  }
  text.resize(text.size() - 2);  // the closing "\n}", which follows the hash
  const uint64_t hash = hash_of(std::string_view(text));
  text.append(kHashPrefix).append(to_hex(hash)).append(kHashSuffix);
  if (text.size() > kMaxManifestNbytes) {
    fail<ConfigError>("the manifest of the checkpoint has {} bytes; expected at most {}",
                      text.size(), kMaxManifestNbytes);
  }
  return text;
}

Manifest decode_manifest(std::string_view text, const std::string& file) {
  const std::string_view body = checked_body(text, file);
  const nlohmann::json json = parse_json(std::string(body) + "}", file);
  const JsonReader top(json, file, "checkpoint");
  check_version(top);
  Manifest manifest{
      .zerorun_version = top.text("zerorun"),
      .progress = decode_progress(top),
      .states = decode_states(top),
      .groups = decode_groups(top),
      .parameters = {},
      .configuration = top.text("configuration"),
      .client_state = top.text("client_state"),
      .shards = decode_shards(top),
      .buffers = {},
  };
  manifest.parameters =
      decode_parameters(top, file, manifest.states.size(), manifest.groups.size());
  if (top.has("buffers")) {
    manifest.buffers = decode_shard(top.object("buffers"), is_buffers_name);
  }
  const int64_t world_size = top.integer("world_size", 1, kMaxRanks);
  if (static_cast<size_t>(world_size) != manifest.shards.size()) {
    top.fail(fmt::format("world size {}, but {} files", world_size, manifest.shards.size()));
  }
  return manifest;
}

}  // namespace zerorun
