#include "checkpoint/checkpoint_reader.h"

#include <algorithm>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "checkpoint/hash.h"
#include "checkpoint/layout.h"
#include "checkpoint/shard_file.h"
#include "core/check.h"
#include "os/text_file.h"

namespace zerorun {

namespace fs = std::filesystem;

namespace {

constexpr size_t kChunkNbytes = size_t{1} << 20;  // stays in the cache between read and hash

using Record = CheckpointReader::Record;

auto key_of(const Record& record) {
  return std::tuple(record.parameter, record.kind, record.begin);
}

}  // namespace

// The indices by which records name parameters and kinds.
struct CheckpointReader::Names {
  explicit Names(const Manifest& manifest) {
    for (const Manifest::Parameter& parameter : manifest.parameters) {
      parameters.emplace(parameter.name, static_cast<int>(parameters.size()));
    }
    for (const StateSpec& state : manifest.states) {
      kinds.emplace(state.name, static_cast<int>(kinds.size()));
    }
  }
  std::unordered_map<std::string, int> parameters;
  std::unordered_map<std::string, int> kinds = {{kParamKind, kParam}};
};

CheckpointReader::CheckpointReader(fs::path folder) : folder_(std::move(folder)) {
  const fs::path path = folder_ / kManifestName;
  const std::string text = read_text(path, kMaxManifestNbytes);
  manifest_ = decode_manifest(text, path.string());
  id_ = hash_of(std::string_view(text));
  const Names names(manifest_);
  for (size_t shard = 0; shard < manifest_.shards.size(); ++shard) {
    add_records(static_cast<int>(shard), names);
  }
  std::sort(records_.begin(), records_.end(),
            [](const Record& a, const Record& b) { return key_of(a) < key_of(b); });
  check_coverage();
}

File CheckpointReader::open(int shard) const {
  const Manifest::ShardFile& entry = manifest_.shards[static_cast<size_t>(shard)];
  const fs::path path = folder_ / entry.name;
  if (!path_exists(path)) {
    fail<CheckpointError>("{} is missing, although {} lists it", path.string(), kManifestName);
  }
  File file = File::open_to_read(path);
  if (file.size() != entry.nbytes) {
    fail<CheckpointError>("{}: {} bytes long, it was saved with {}: cut short or overwritten",
                          path.string(), file.size(), entry.nbytes);
  }
  return file;
}

void CheckpointReader::add_records(int shard, const Names& names) {
  const Manifest::ShardFile& entry = manifest_.shards[static_cast<size_t>(shard)];
  const File file = open(shard);
  const std::string path = file.path().string();
  if (entry.header_nbytes > kMaxHeaderNbytes) {
    fail<CheckpointError>("{}: header of {} bytes; expected at most {}", path, entry.header_nbytes,
                          kMaxHeaderNbytes);
  }
  std::string header(entry.header_nbytes, '\0');
  header.resize(file.read(0, std::as_writable_bytes(std::span(header))));
  if (hash_of(std::string_view(header)) != entry.header_hash) {
    fail<CheckpointError>(
        "{}: damaged: the header, bytes 0 to {}, has the hash {}, it was saved "
        "with {}",
        path, entry.header_nbytes, to_hex(hash_of(std::string_view(header))),
        to_hex(entry.header_hash));
  }
  for (const ShardRecord& record : decode_shard_header(header, entry.nbytes, path)) {
    const auto parameter = names.parameters.find(record.parameter);
    const auto kind = names.kinds.find(record.kind);
    if (parameter == names.parameters.end() || kind == names.kinds.end()) {
      fail<CheckpointError>("{}: record of '{}' ({}), which {} does not list", path,
                            record.parameter, record.kind, kManifestName);
    }
    records_.push_back({.parameter = parameter->second,
                        .kind = kind->second,
                        .shard = shard,
                        .dtype = record.dtype,
                        .begin = record.begin,
                        .numel = record.numel,
                        .offset = entry.header_nbytes + record.offset,
                        .hash = record.hash});
  }
}

// Walks the sorted records beside the list of what must be there.
void CheckpointReader::check_coverage() const {
  const auto expect = [&](auto next, int parameter, int kind, DType dtype, int64_t numel) {
    int64_t covered = 0;
    for (; next != records_.end() && next->parameter == parameter && next->kind == kind; ++next) {
      const int64_t overlap_or_gap = next->begin - covered;
      if (overlap_or_gap != 0 || next->dtype != dtype) {
        fail<CheckpointError>("{}: {} in {}: expected {} from element {} on", folder_.string(),
                              describe(*next), name_of(next->dtype), name_of(dtype), covered);
      }
      covered = next->end();
    }
    if (covered != numel) {
      fail<CheckpointError>(
          "{}: the files hold {} elements of {} ({}); expected {}", folder_.string(), covered,
          manifest_.parameters[static_cast<size_t>(parameter)].name, kind_name(kind), numel);
    }
    return next;
  };
  auto next = records_.begin();
  for (size_t i = 0; i < manifest_.parameters.size(); ++i) {
    const Manifest::Parameter& parameter = manifest_.parameters[i];
    if (!parameter.alias_of.empty()) continue;
    const int index = static_cast<int>(i);
    if (!parameter.saved) continue;
    if (!parameter.trainable) {
      next = expect(next, index, kParam, parameter.dtype, parameter.numel());
      continue;
    }
    for (const int state : parameter.states) {
      const StateSpec& spec = manifest_.states[static_cast<size_t>(state)];
      next = expect(next, index, 1 + state, spec.dtype, spec.numel(parameter.numel()));
    }
  }
  if (next != records_.end()) {
    fail<CheckpointError>("{}: unexpected {}", folder_.string(), describe(*next));
  }
}

std::span<const Record> CheckpointReader::records_of(int parameter, int kind, int64_t begin,
                                                     int64_t end) const {
  const Record first{.parameter = parameter, .kind = kind, .begin = begin};
  const Record last{.parameter = parameter, .kind = kind, .begin = end};
  const auto by_key = [](const Record& a, const Record& b) { return key_of(a) < key_of(b); };
  auto from = std::upper_bound(records_.begin(), records_.end(), first, by_key);
  if (from != records_.begin()) --from;  // the record that holds `begin` starts at or before it
  if (from != records_.end() &&
      (from->parameter != parameter || from->kind != kind || from->end() <= begin)) {
    ++from;
  }
  const auto to = std::lower_bound(from, records_.end(), last, by_key);
  return {from, to};
}

void CheckpointReader::verify(const File& file, const Record& record) const {
  std::vector<std::byte> buffer(std::min<uint64_t>(record.nbytes(), kChunkNbytes));
  Hash hash;
  for (uint64_t done = 0; done < record.nbytes(); done += buffer.size()) {
    const std::span chunk =
        std::span(buffer).first(std::min<uint64_t>(buffer.size(), record.nbytes() - done));
    read(file, record, done, chunk);
    hash.update(chunk);
  }
  if (hash.value() != record.hash) {
    fail<CheckpointError>(
        "{}: damaged: {} at offset {}, {} bytes, have the hash {}, they were "
        "saved with {}",
        file.path().string(), describe(record), record.offset, record.nbytes(),
        to_hex(hash.value()), to_hex(record.hash));
  }
}

void CheckpointReader::read(const File& file, const Record& record, uint64_t offset,
                            std::span<std::byte> out) const {
  if (file.read(record.offset + offset, out) != out.size()) {
    fail<CheckpointError>("{}: ends within {}, at offset {}", file.path().string(),
                          describe(record), record.offset + offset);
  }
}

std::string CheckpointReader::kind_name(int kind) const {
  if (kind == kParam) return kParamKind;
  return manifest_.states[static_cast<size_t>(kind - 1)].name;
}

std::string CheckpointReader::describe(const Record& record) const {
  return fmt::format("elements [{}, {}) of {} ({})", record.begin, record.end(),
                     manifest_.parameters[static_cast<size_t>(record.parameter)].name,
                     kind_name(record.kind));
}

}  // namespace zerorun
