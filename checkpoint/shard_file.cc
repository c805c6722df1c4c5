#include "checkpoint/shard_file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "checkpoint/file.h"
#include "checkpoint/hash.h"
#include "checkpoint/host_buffer.h"
#include "checkpoint/json_reader.h"
#include "core/check.h"

namespace zerorun {

namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

// As in PNG, the first and last bytes show up transfers that change bit 7 or line ends.
constexpr std::string_view kMagic = "\x89ZRCKPT\n";
struct Preamble {
  char magic[8];
  uint32_t version;
  uint32_t json_nbytes;
};
static_assert(sizeof(Preamble) == 16);

constexpr uint64_t kSyncNbytes = uint64_t{64} << 20;

uint64_t align_up(uint64_t offset) { return (offset + kAlignment - 1) / kAlignment * kAlignment; }

nlohmann::ordered_json encode_record(const ShardRecord& record) {
  return {{"parameter", record.parameter},  {"kind", record.kind},
          {"dtype", name_of(record.dtype)}, {"begin", record.begin},
          {"numel", record.numel},          {"offset", record.offset},
          {"xxh3", to_hex(record.hash)}};
}

ShardRecord decode_record(const JsonReader& json) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max() / 16;
  ShardRecord record{.parameter = json.text("parameter"),
                     .kind = json.text("kind"),
                     .dtype = json.dtype("dtype"),
                     .begin = json.integer("begin", 0, kMax),
                     .numel = json.integer("numel", 1, kMax)};
  record.offset = static_cast<uint64_t>(json.integer("offset", 0, kMax));
  record.hash = json.hash("xxh3");
  return record;
}

// The JSON table within the header's bytes.
std::string_view header_json(std::string_view bytes, const std::string& file) {
  Preamble preamble = {};
  if (bytes.size() < sizeof preamble || !bytes.starts_with(kMagic)) {
    fail<CheckpointError>("{}: offset 0: not a file of a zerorun checkpoint", file);
  }
  std::memcpy(&preamble, bytes.data(), sizeof preamble);
  if (preamble.version != kFormatVersion) {
    fail<CheckpointError>("{}: offset 8: format version {}; expected {}", file, preamble.version,
                          kFormatVersion);
  }
  if (align_up(sizeof preamble + uint64_t{preamble.json_nbytes}) != bytes.size()) {
    fail<CheckpointError>("{}: offset 12: table of {} bytes in a header of {}", file,
                          preamble.json_nbytes, bytes.size());
  }
  return bytes.substr(sizeof preamble, preamble.json_nbytes);
}

}  // namespace

std::string encode_shard_header(std::span<const ShardRecord> records) {
  nlohmann::ordered_json table = nlohmann::ordered_json::array();
  for (const ShardRecord& record : records) table.push_back(encode_record(record));
  std::string json;
  try {
    json = nlohmann::ordered_json{{"records", std::move(table)}}.dump();
  } catch (const nlohmann::json::exception& error) {
    fail<ConfigError>("a parameter's name is not UTF-8: {}", error.what());
  }
  Preamble preamble = {};
  preamble.version = kFormatVersion;
  preamble.json_nbytes = static_cast<uint32_t>(json.size());
  std::copy(kMagic.begin(), kMagic.end(), preamble.magic);
  const uint64_t nbytes = align_up(sizeof preamble + json.size());
  if (nbytes > kMaxHeaderNbytes) {
    fail<ConfigError>("the table of a checkpoint file has {} bytes; expected at most {}", nbytes,
                      kMaxHeaderNbytes);
  }
  std::string header(nbytes, '\0');
  std::memcpy(header.data(), &preamble, sizeof preamble);
  std::copy(json.begin(), json.end(), header.begin() + sizeof preamble);
  return header;
}

std::vector<ShardRecord> decode_shard_header(std::string_view bytes, uint64_t file_nbytes,
                                             const std::string& file) {
  const nlohmann::json json = parse_json(header_json(bytes, file), file, sizeof(Preamble));
  std::vector<ShardRecord> records;
  uint64_t end = 0;
  int64_t index = 0;
  for (const nlohmann::json& entry : JsonReader(json, file, "table").array("records")) {
    const JsonReader reader(entry, file, "records", index++);
    ShardRecord record = decode_record(reader);
    if (record.offset != align_up(end)) {
      reader.fail(fmt::format("offset {}; expected {}", record.offset, align_up(end)));
    }
    end = record.offset + record.nbytes();
    if (end > file_nbytes) {
      reader.fail(
          fmt::format("ends {} bytes behind the header of a file of {} bytes", end, file_nbytes));
    }
    records.push_back(std::move(record));
  }
  if (bytes.size() + end != file_nbytes) {
    fail<CheckpointError>("{}: {} bytes long; its table says {}", file, file_nbytes,
                          bytes.size() + end);
  }
  return records;
}

template <typename Use>
void ShardPlan::visit(StateAccess access, const Use& use) {
  const auto specs = engine_.parameters();
  engine_.visit_states(access, [&](const StateInterval& interval) {
    const ParameterSpec& spec = specs[static_cast<size_t>(interval.parameter)];
    if (!wanted_(spec)) return;
    const auto cut = [&](const std::string& kind, int64_t begin, TensorView data) {
      for (int64_t done = 0; done < data.numel; done += max_record_numel_) {
        const int64_t numel = std::min(max_record_numel_, data.numel - done);
        use(spec.name, kind, begin + done, data.slice(done, numel));
      }
    };
    if (!spec.trainable) return cut(kParamKind, interval.begin, interval.param);
    const auto states = engine_.state_specs(interval.parameter);
    ZR_CHECK(interval.states.size() == states.size(), "{} has {} states", spec.name,
             interval.states.size());
    cut(kMasterKind, interval.begin, interval.master);
    for (size_t i = 0; i < states.size(); ++i) {
      cut(states[i].name, interval.begin / states[i].block, interval.states[i]);
    }
  });
}

ShardPlan::ShardPlan(EngineStates& engine, Wanted wanted, int64_t max_record_numel)
    : engine_(engine), wanted_(std::move(wanted)), max_record_numel_(max_record_numel) {
  visit(StateAccess::shape,
        [&](const std::string& parameter, const std::string& kind, int64_t begin, TensorView data) {
          records_.push_back({.parameter = parameter,
                              .kind = kind,
                              .dtype = data.dtype,
                              .begin = begin,
                              .numel = data.numel,
                              .offset = align_up(nbytes_)});
          nbytes_ = records_.back().offset + records_.back().nbytes();
        });
  // The hashes, unknown yet, do not change the length of the table.
  header_nbytes_ = encode_shard_header(records_).size();
  nbytes_ += header_nbytes_;
}

Manifest::ShardFile ShardPlan::write(const std::filesystem::path& folder, const std::string& name) {
  HostBuffer buffer(engine_.device());
  File file = File::create(folder / name);
  uint64_t syncing = 0;  // up to here
  size_t next = 0;
  visit(StateAccess::read,
        [&](const std::string& parameter, const std::string& kind, int64_t from, TensorView data) {
          ShardRecord& record = records_.at(next++);
          ZR_CHECK(record.parameter == parameter && record.kind == kind && record.begin == from,
                   "{} {} of {} is visited where {} {} of {} was", kind, from, parameter,
                   record.kind, record.begin, record.parameter);
          const uint64_t begin = header_nbytes_ + record.offset;
          Hash hash;
          buffer.download(data, [&](uint64_t offset, std::span<const std::byte> bytes) {
            hash.update(bytes);
            file.write(begin + offset, bytes);
          });
          record.hash = hash.value();
          const uint64_t end = begin + record.nbytes();
          if (end - syncing >= kSyncNbytes) {
            file.start_sync(syncing, end - syncing);
            syncing = end;
          }
        });
  const std::string header = encode_shard_header(records_);
  file.write(0, std::as_bytes(std::span(header)));
  file.sync();
  return {.name = name,
          .nbytes = nbytes_,
          .header_nbytes = header.size(),
          .header_hash = hash_of(std::string_view(header))};
}

}  // namespace zerorun
