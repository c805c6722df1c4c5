#include "checkpoint/format/shard_file.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "checkpoint/files/file.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/safetensors_format.h"
#include "core/check.h"
#include "core/parse_number.h"

namespace zerorun {

namespace {

constexpr const char* kFormatKey = "format";
constexpr const char* kVersionKey = "version";
constexpr const char* kHashesKey = "xxh3";

// Takes the hashes of a tensor's chunks off the front of the text.
std::vector<uint64_t> take_hashes(std::string_view& text, uint64_t chunks, const std::string& name,
                                  const std::string& file) {
  std::vector<uint64_t> hashes;
  for (uint64_t i = 0; i < chunks; ++i) {
    const std::optional<uint64_t> hash = from_hex(text.substr(0, kHexDigits));
    if (!hash) {
      fail<CheckpointError>("{}: metadata '{}' lacks hash {} of the {} of '{}'", file, kHashesKey,
                            i + 1, chunks, name);
    }
    hashes.push_back(*hash);
    text.remove_prefix(kHexDigits);
  }
  return hashes;
}

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

std::optional<int64_t> parse_count(std::string_view text) {
  const bool canonical = text == "0" || !text.starts_with('0');
  return canonical ? parse_number<int64_t>(text, 0) : std::nullopt;
}

// The parameter's own where the tensor holds all of it, for those who look at the file.
std::vector<int64_t> shape_of(const ParameterSpec& spec, const TensorView& data) {
  if (data.numel == spec.numel()) return spec.shape;
  return {data.numel};
}

}  // namespace

std::string encode_hashed_header(std::vector<HashedTensor>& tensors) {
  std::vector<SafetensorsEntry> entries;
  std::string hashes;
  for (HashedTensor& tensor : tensors) {
    entries.push_back({tensor.name, tensor.dtype_name, tensor.shape, tensor.nbytes});
    tensor.hashes.resize(chunks_of(tensor.nbytes));
    for (const uint64_t hash : tensor.hashes) hashes += to_hex(hash);
  }
  std::string header = encode_safetensors_header(entries,
                                                 {{kFormatKey, kFormatName},
                                                  {kVersionKey, std::to_string(kFormatVersion)},
                                                  {kHashesKey, hashes}},
                                                 kHeaderAlignment);
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i].begin = entries[i].begin;
  return header;
}

std::vector<HashedTensor> decode_hashed_header(std::string_view bytes, uint64_t file_nbytes,
                                               const std::string& file) {
  SafetensorsHeader header =
      decode_safetensors_header(std::as_bytes(std::span(bytes)), file_nbytes, file);
  if (header.metadata[kFormatKey] != kFormatName) {
    fail<CheckpointError>("{}: offset 8: not a file of a zerorun checkpoint", file);
  }
  const std::string hashes = header.metadata[kHashesKey];
  std::string_view rest = hashes;
  std::vector<HashedTensor> tensors;
  for (SafetensorsHeader::Tensor& tensor : header.tensors) {
    const uint64_t nbytes = tensor.end - tensor.begin;
    std::vector<uint64_t> own = take_hashes(rest, chunks_of(nbytes), tensor.name, file);
    tensors.push_back({.name = std::move(tensor.name),
                       .dtype_name = std::move(tensor.dtype_name),
                       .shape = std::move(tensor.shape),
                       .nbytes = nbytes,
                       .begin = tensor.begin,
                       .hashes = std::move(own)});
  }
  if (!rest.empty()) {
    fail<CheckpointError>("{}: metadata '{}' has hashes of no tensor", file, kHashesKey);
  }
  return tensors;
}

std::string ShardInterval::name() const {
  return fmt::format("{}.{}[{}:{}]", parameter, kind, begin, end);
}

std::string plain_name(std::string_view name) {
  std::string plain;
  const char* separator = "";
  for (size_t begin = 0, end = 0; begin <= name.size(); begin = end + 1) {
    end = std::min(name.find('.', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    if (part == "_orig_mod" || part == "_checkpoint_wrapped_module") continue;
    plain.append(std::exchange(separator, ".")).append(part);
  }
  return plain;
}

std::optional<ShardInterval> parse_interval(std::string_view name) {
  const size_t bracket = name.rfind('[');
  if (bracket == name.npos || !name.ends_with(']')) return std::nullopt;
  const size_t dot = name.rfind('.', bracket);
  const size_t colon = name.find(':', bracket);
  if (dot == name.npos || colon == name.npos) return std::nullopt;
  const auto begin = parse_count(name.substr(bracket + 1, colon - bracket - 1));
  const auto end = parse_count(name.substr(colon + 1, name.size() - colon - 2));
  if (!begin || !end || *end <= *begin) return std::nullopt;
  return ShardInterval{.parameter = plain_name(name.substr(0, dot)),
                       .kind = std::string(name.substr(dot + 1, bracket - dot - 1)),
                       .begin = *begin,
                       .end = *end};
}

template <typename Visit>
void ShardPlan::visit(StateAccess access, const Visit& visit) const {
  const auto specs = engine_.parameters();
  engine_.visit_states(access, [&](const StateInterval& interval) {
    const ParameterSpec& spec = specs[static_cast<size_t>(interval.parameter)];
    if (!interval.owned || !wanted_(spec)) return;
    const bool on_host = spec.trainable ? interval.on_host : interval.param_on_host;
    const auto use = [&](const std::string& kind, int64_t begin, TensorView data) {
      if (data.numel > 0) visit(spec, kind, begin, data, on_host);
    };
    if (!spec.trainable) return use(kParamKind, interval.begin, interval.param);
    const auto states = engine_.state_specs(interval.parameter);
    ZR_CHECK(interval.states.size() == states.size(), "{} has {} states", spec.name,
             interval.states.size());
    use(kMasterKind, interval.begin, interval.master);
    for (size_t i = 0; i < states.size(); ++i) {
      use(states[i].name, interval.begin / states[i].block, interval.states[i]);
    }
  });
}

ShardPlan::ShardPlan(EngineStates& engine, Wanted wanted)
    : engine_(engine), wanted_(std::move(wanted)) {
  std::vector<HashedTensor> visited;
  std::vector<size_t> element_nbytes;
  visit(StateAccess::shape, [&](const ParameterSpec& spec, const std::string& kind, int64_t begin,
                                TensorView data, bool) {
    const ShardInterval interval{spec.name, kind, begin, begin + data.numel};
    visited.push_back({.name = interval.name(),
                       .dtype_name = std::string(safetensors_name_of(data.dtype)),
                       .shape = shape_of(spec, data),
                       .nbytes = data.nbytes()});
    element_nbytes.push_back(size_of(data.dtype));
  });
  std::vector<size_t> order(visited.size());  // index into `visited`, by place in the file
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return element_nbytes[a] > element_nbytes[b]; });
  places_.resize(visited.size());
  for (const size_t index : order) {
    places_[index] = tensors_.size();
    tensors_.push_back(std::move(visited[index]));
  }
  const uint64_t header_nbytes = encode_hashed_header(tensors_).size();
  nbytes_ = tensors_.empty() ? header_nbytes : tensors_.back().end();
}

void ShardPlan::read(const Use& use) const {
  size_t next = 0;
  visit(StateAccess::read, [&](const ParameterSpec& spec, const std::string& kind, int64_t begin,
                               TensorView data, bool on_host) {
    const size_t place = places_.at(next++);
    const ShardInterval interval{spec.name, kind, begin, begin + data.numel};
    ZR_CHECK(tensors_[place].name == interval.name(), "{} is visited where {} was", interval.name(),
             tensors_[place].name);
    use(place, data, on_host);
  });
}

}  // namespace zerorun
