#include "checkpoint/loading/checkpoint_reader.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "checkpoint/files/file.h"
#include "checkpoint/files/layout.h"
#include "checkpoint/format/safetensors_format.h"
#include "checkpoint/format/shard_file.h"
#include "checkpoint/loading/record_runs.h"
#include "core/check.h"
#include "os/text_file.h"
#include "zerorun/device.h"

namespace zerorun {

namespace fs = std::filesystem;

namespace {

using Record = CheckpointReader::Record;

auto key_of(const Record& record) {
  return std::tuple(record.parameter, record.kind, record.begin);
}

uint64_t nbytes_of(const Manifest& manifest) {
  uint64_t nbytes = 0;
  for (const Manifest::ShardFile& shard : manifest.shards) nbytes += shard.nbytes;
  return nbytes + (manifest.buffers ? manifest.buffers->nbytes : 0);
}

void verify_records(const CheckpointReader& checkpoint,
                    const std::function<void(uint64_t nbytes)>& progress) {
  std::vector<const Record*> records;
  for (const Record& record : checkpoint.records()) records.push_back(&record);
  sort_by_place(records);
  Workers workers(kReadingThreads);
  const std::shared_ptr<Device> host = make_cpu_device();
  RunReader(checkpoint, *host, workers, ReadPath::direct)
      .read(runs_of(records), {.done = progress});
  for (size_t i = 0; i < checkpoint.buffers().size(); ++i) {
    std::vector<std::byte> bytes(checkpoint.buffers()[i].nbytes);
    checkpoint.read_buffer(i, bytes);
  }
}

// Finds the files with the states of a torch optimizer, which the Python package keeps in a folder
// next to the checkpoint and lists in its `client_state`. Their SHA-256 is for those who load them.
void find_optimizer_files(const fs::path& folder, const std::string& client_state) {
  const nlohmann::json state = nlohmann::json::parse(client_state, nullptr, false);
  if (!state.is_object() || !state.contains("zerorun_python")) return;  // another program's
  const nlohmann::json record = state.value("shard_files", nlohmann::json());
  if (record.is_null()) return;
  try {
    const fs::path files =
        folder.parent_path() / fs::path(record.at("folder").get<std::string>()).filename();
    for (const nlohmann::json& entry : record.at("files")) {
      const nlohmann::json& row = entry.is_object() ? entry.at("$tuple") : entry;
      if (row.size() > 3 && !row.at(3).get<std::string>().empty()) continue;  // on that host's disk
      const fs::path path = files / fs::path(row.at(0).get<std::string>()).filename();
      if (!path_exists(path)) {
        fail<CheckpointError>("{} does not exist: copy its folder together with the checkpoint",
                              path.string());
      }
      const uint64_t nbytes = File::open_to_read(path).size();
      if (nbytes == row.at(1)) continue;
      fail<CheckpointError>("{}: got {} bytes, {} were saved; load another tag", path.string(),
                            nbytes, row.at(1).dump());
    }
  } catch (const nlohmann::json::exception& error) {
    fail<CheckpointError>("{}: no list of optimizer states: {}", folder.string(), error.what());
  }
}

std::string verify_folder(const fs::path& folder, const VerifyProgress& progress) {
  const CheckpointReader checkpoint(folder);
  const Manifest& manifest = checkpoint.manifest();
  const uint64_t nbytes = nbytes_of(manifest);
  verify_records(checkpoint, [&](uint64_t read) { progress(folder.string(), read, nbytes); });
  find_optimizer_files(folder, manifest.client_state);
  return fmt::format(
      "{}: ok: step {}, {} parameters of {} elements, {} bytes in {} files, saved by zerorun {}",
      folder.string(), manifest.progress.step_count, manifest.parameters.size(), manifest.numel(),
      nbytes, manifest.shards.size() + (manifest.buffers ? 1 : 0), manifest.zerorun_version);
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
  if (manifest_.buffers) buffers_ = read_header(*manifest_.buffers);
}

File CheckpointReader::open(const Manifest::ShardFile& entry) const {
  const fs::path path = folder_ / entry.name;
  if (!entry_exists(path)) {
    fail<CheckpointError>(
        "{} is missing, although {} lists it{}", path.string(), kManifestName,
        entry.host.empty() ? "" : fmt::format(": it was written on the host {}", entry.host));
  }
  File file = File::open_to_read(path);
  if (file.size() != entry.nbytes) {
    fail<CheckpointError>("{}: {} bytes long, it was saved with {}: cut short or overwritten",
                          path.string(), file.size(), entry.nbytes);
  }
  return file;
}

std::vector<HashedTensor> CheckpointReader::read_header(const Manifest::ShardFile& entry) const {
  const fs::path own_header = header_path(folder_ / entry.name);
  const bool is_elsewhere = !path_exists(folder_ / entry.name) && path_exists(own_header);
  const File file = is_elsewhere ? File::open_to_read(own_header) : open(entry);
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
  return decode_hashed_header(header, entry.nbytes, path);
}

void CheckpointReader::add_records(int shard, const Names& names) {
  const Manifest::ShardFile& entry = manifest_.shards[static_cast<size_t>(shard)];
  const std::string path = (folder_ / entry.name).string();
  for (const HashedTensor& tensor : read_header(entry)) {
    const std::optional<ShardInterval> interval = parse_interval(tensor.name);
    if (!interval) {
      fail<CheckpointError>("{}: '{}' does not name elements of a parameter", path, tensor.name);
    }
    const auto parameter = names.parameters.find(interval->parameter);
    const auto kind = names.kinds.find(interval->kind);
    if (parameter == names.parameters.end() || kind == names.kinds.end()) {
      fail<CheckpointError>("{}: tensor of '{}' ({}), which {} does not list", path,
                            interval->parameter, interval->kind, kManifestName);
    }
    const std::optional<DType> dtype = safetensors_dtype_from(tensor.dtype_name);
    if (!dtype ||
        tensor.nbytes / size_of(*dtype) != static_cast<uint64_t>(interval->end - interval->begin)) {
      fail<CheckpointError>("{}: '{}' has {} bytes of {}", path, tensor.name, tensor.nbytes,
                            tensor.dtype_name);
    }
    const auto chunk_numel = static_cast<int64_t>(kChunkNbytes / size_of(*dtype));
    for (size_t chunk = 0; chunk < tensor.hashes.size(); ++chunk) {
      const int64_t done = static_cast<int64_t>(chunk) * chunk_numel;
      const int64_t begin = interval->begin + done;
      records_.push_back({.parameter = parameter->second,
                          .kind = kind->second,
                          .shard = shard,
                          .dtype = *dtype,
                          .begin = begin,
                          .numel = std::min(chunk_numel, interval->end - begin),
                          .offset = tensor.begin + static_cast<uint64_t>(done) * size_of(*dtype),
                          .hash = tensor.hashes[chunk]});
    }
  }
}

void CheckpointReader::read_buffer(size_t index, std::span<std::byte> out) const {
  const HashedTensor& tensor = buffers_.at(index);
  const File file = open(*manifest_.buffers);
  ZR_CHECK(out.size() == tensor.nbytes, "buffer {}: got {} bytes, it has {}", tensor.name,
           out.size(), tensor.nbytes);
  if (file.read(tensor.begin, out) != out.size()) {
    fail<CheckpointError>("{}: ends within '{}'", file.path().string(), tensor.name);
  }
  for (size_t chunk = 0; chunk < tensor.hashes.size(); ++chunk) {
    const uint64_t begin = chunk * kChunkNbytes;
    const auto bytes = out.subspan(begin, std::min(kChunkNbytes, out.size() - begin));
    if (hash_of(std::span<const std::byte>(bytes)) == tensor.hashes[chunk]) continue;
    fail<CheckpointError>(
        "{}: damaged: bytes {} to {} of the buffer '{}' have another hash than "
        "they were saved with",
        file.path().string(), begin, begin + bytes.size(), tensor.name);
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

void CheckpointReader::check_hash(const Record& record, uint64_t hash) const {
  if (hash == record.hash) return;
  fail<CheckpointError>(
      "{}: damaged: {} at offset {}, {} bytes, have the hash {}, they were "
      "saved with {}",
      (folder_ / manifest_.shards[static_cast<size_t>(record.shard)].name).string(),
      describe(record), record.offset, record.nbytes(), to_hex(hash), to_hex(record.hash));
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

void verify_checkpoint(const std::string& directory,
                       const std::function<void(const std::string& line)>& report,
                       const VerifyProgress& progress) {
  const fs::path root(directory);
  const std::vector<std::string> tags = list_tags(root);
  if (tags.empty()) return report(verify_folder(find_checkpoint(root, ""), progress));
  std::vector<std::string> problems;
  const auto check = [&](const auto& step) {
    try {
      report(step());
    } catch (const Error& error) {
      problems.emplace_back(error.what());
    }
  };
  for (const std::string& tag : tags) check([&] { return verify_folder(root / tag, progress); });
  check([&] { return fmt::format("latest: {}", find_checkpoint(root, "").filename().string()); });
  if (!problems.empty()) fail<CheckpointError>("{}", fmt::join(problems, "\n"));
}

}  // namespace zerorun
