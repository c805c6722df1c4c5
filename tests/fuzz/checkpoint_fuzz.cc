#include <nlohmann/json.hpp>

#include "checkpoint/files/file.h"
#include "checkpoint/files/layout.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/shard_file.h"
#include "checkpoint/loading/checkpoint_reader.h"
#include "core/check.h"
#include "tests/checkpoint/temporary_directory.h"
#include "tests/fuzz/driver.h"

namespace zerorun::testing {
namespace {

// An input is the JSON of a manifest, this, and the JSON of a file's table. Lengths and hashes are
// put right before they are parsed: damage would seldom get past them.
constexpr std::string_view kSeparator = "\n---\n";
constexpr uint64_t kMaxFileNbytes = 1 << 16;

std::string with_hash(std::string body) {
  while (!body.empty() && (body.back() == '}' || body.back() == '\n')) body.pop_back();
  return body + ",\n  \"xxh3\": \"" + to_hex(hash_of(std::string_view(body))) + "\"\n}\n";
}

// The length of the data by the table, whatever it is.
uint64_t data_nbytes(std::string_view table) {
  const auto json = nlohmann::json::parse(table, nullptr, false);
  uint64_t nbytes = 0;
  if (!json.is_object()) return nbytes;
  for (const auto& [name, tensor] : json.items()) {
    try {
      if (name == "__metadata__") continue;
      nbytes = std::max(nbytes, tensor.at("data_offsets").at(1).get<uint64_t>());
    } catch (const nlohmann::json::exception&) {
      continue;
    }
  }
  return nbytes;
}

// The manifest with one file, which has this header.
std::string with_file(std::string_view manifest, const std::string& name, const std::string& header,
                      uint64_t nbytes) {
  auto json = nlohmann::json::parse(manifest, nullptr, false);
  if (!json.is_object()) return with_hash(std::string(manifest));
  json["world_size"] = 1;
  json["files"] = {{{"name", name},
                    {"nbytes", nbytes},
                    {"header_nbytes", header.size()},
                    {"header_xxh3", to_hex(hash_of(std::string_view(header)))}}};
  return with_hash(json.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
}

void check_every_element_is_found(const CheckpointReader& checkpoint) {
  const auto& parameters = checkpoint.manifest().parameters;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].alias_of.empty()) continue;
    const auto check = [&](int kind, int64_t numel) {
      int64_t found = 0;
      for (const auto& record : checkpoint.records_of(static_cast<int>(i), kind, 0, numel)) {
        ZR_CHECK(record.begin == found, "{}", checkpoint.describe(record));
        found = record.end();
      }
      ZR_CHECK(found == numel, "{} of {}", found, numel);
    };
    const int64_t numel = parameters[i].numel();
    if (!parameters[i].trainable) check(CheckpointReader::kParam, numel);
    for (const int state : parameters[i].states) {
      check(1 + state, checkpoint.manifest().states[static_cast<size_t>(state)].numel(numel));
    }
  }
}

}  // namespace

// Any bytes either are a checkpoint that holds every element once, or give a CheckpointError.
void fuzz(std::string_view input) {
  static const TemporaryDirectory directory;
  const std::string_view manifest = input.substr(0, input.find(kSeparator));
  const std::string_view table =
      manifest.size() == input.size() ? input : input.substr(manifest.size() + kSeparator.size());

  may_throw<CheckpointError>([&] { decode_manifest(input, "raw"); });
  may_throw<CheckpointError>([&] { decode_manifest(with_hash(std::string(input)), "m"); });
  may_throw<CheckpointError>([&] {
    const Manifest decoded = decode_manifest(with_hash(std::string(manifest)), "m");
    ZR_CHECK(encode_manifest(decode_manifest(encode_manifest(decoded), "again")) ==
                 encode_manifest(decoded),
             "round trip");
  });
  may_throw<CheckpointError>([&] { decode_hashed_header(input, input.size(), "raw"); });

  const std::string header = with_length(table);
  const uint64_t nbytes = header.size() + data_nbytes(table);
  may_throw<CheckpointError>([&] { decode_hashed_header(header, nbytes, "h"); });
  if (nbytes < header.size() || nbytes > kMaxFileNbytes) return;
  std::string file = header;
  file.resize(nbytes, '\0');
  const std::string name = shard_name(0, 1);
  write_file(directory.path() / name, file);
  write_file(directory.path() / kManifestName, with_file(manifest, name, header, nbytes));
  may_throw<CheckpointError>(
      [&] { check_every_element_is_found(CheckpointReader(directory.path())); });
}

std::vector<std::string> fuzz_seeds() {
  Manifest manifest;
  manifest.progress = {7, 2, LossScalerState{}};
  manifest.states = {{"master"}, {"exp_avg"}, {"scale", DType::fp32, 4}};
  manifest.groups = {{"default", 0.1F, 0.0F}};
  manifest.parameters = {{"w", {3, 5}, DType::bf16, true, 0, {0, 1, 2}},
                         {"frozen", {4}, DType::bf16, false, 0, {}},
                         {"empty", {0}, DType::bf16, true, 0, {0, 1}},
                         {"tied", {}, DType::fp32, true, 0, {}, "w"}};
  manifest.client_state = "{\"epoch\": 1}";
  manifest.shards = {{shard_name(0, 1), 1024, 512, 3}};
  std::string text = encode_manifest(manifest);
  text.resize(text.find(",\n  \"xxh3\": "));
  const auto tensor = [](const char* name, const char* dtype, int64_t numel, uint64_t nbytes) {
    return HashedTensor{name, dtype, {numel}, nbytes};
  };
  std::vector<HashedTensor> tensors = {
      tensor("w.master[0:10]", "F32", 10, 40), tensor("w.exp_avg[0:15]", "F32", 15, 60),
      tensor("w.master[10:15]", "F32", 5, 20), tensor("w.scale[0:4]", "F32", 4, 16),
      tensor("frozen.param[0:4]", "BF16", 4, 8)};
  const std::string header = encode_hashed_header(tensors);
  return {text + "\n}" + std::string(kSeparator) + header.substr(8, header.find("  ") - 8),
          encode_manifest(manifest), header};
}

}  // namespace zerorun::testing
