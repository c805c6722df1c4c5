#include "checkpoint/format/hashed_header.h"

#include <optional>
#include <utility>

#include "checkpoint/files/hash.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/safetensors_format.h"
#include "core/check.h"

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

}  // namespace zerorun
