#include "checkpoint/safetensors_format.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/json_reader.h"
#include "core/check.h"

namespace zerorun {

namespace {

constexpr size_t kLengthNbytes = 8;
constexpr uint64_t kHeaderNbytesLimit = 100'000'000;  // of the reference implementation
constexpr uint64_t kHeaderAlignment = 8;
constexpr const char* kMetadataKey = "__metadata__";

constexpr std::array<std::pair<std::string_view, DType>, 5> kDTypes = {{{"F32", DType::fp32},
                                                                        {"BF16", DType::bf16},
                                                                        {"F16", DType::fp16},
                                                                        {"I64", DType::int64},
                                                                        {"U8", DType::uint8}}};

std::optional<DType> dtype_from(std::string_view name) {
  for (const auto& [spelling, dtype] : kDTypes) {
    if (spelling == name) return dtype;
  }
  return std::nullopt;
}

std::string_view name_from(DType dtype) {
  for (const auto& [spelling, value] : kDTypes) {
    if (value == dtype) return spelling;
  }
  return "?";
}

uint64_t header_length(std::span<const std::byte> file_bytes, const std::string& file) {
  uint64_t length = 0;
  if (file_bytes.size() < kLengthNbytes) {
    fail<CheckpointError>("{}: offset 0: {} bytes are too few for a safetensors file", file,
                          file_bytes.size());
  }
  std::memcpy(&length, file_bytes.data(), sizeof length);
  const uint64_t limit = std::min<uint64_t>(kHeaderNbytesLimit, file_bytes.size() - kLengthNbytes);
  if (length > limit) {
    fail<CheckpointError>("{}: offset 0: header of {} bytes; a file of {} bytes allows {}", file,
                          length, file_bytes.size(), limit);
  }
  return length;
}

// `data_begin` and `data_nbytes` bound the places of tensors in the file.
SafetensorsHeader::Tensor decode_tensor(const std::string& name, const nlohmann::json& json,
                                        uint64_t data_begin, uint64_t data_nbytes,
                                        const std::string& file) {
  const JsonReader reader(json, file, name);
  SafetensorsHeader::Tensor tensor;
  tensor.name = name;
  tensor.dtype_name = reader.text("dtype");
  tensor.dtype = dtype_from(tensor.dtype_name);
  const size_t element = tensor.dtype ? size_of(*tensor.dtype) : 1;
  tensor.shape = reader.shape("shape", element);
  const auto& offsets = reader.array("data_offsets");
  if (offsets.size() != 2 || !offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned()) {
    reader.fail("'data_offsets' is not a pair of offsets");
  }
  const auto begin = offsets[0].get<uint64_t>();
  const auto end = offsets[1].get<uint64_t>();
  if (begin > end || end > data_nbytes) {
    reader.fail(fmt::format("data_offsets [{}, {}] do not fit into {} bytes of data at offset {}",
                            begin, end, data_nbytes, data_begin));
  }
  const auto nbytes = static_cast<uint64_t>(checked_numel(tensor.shape, element)) * element;
  if (tensor.dtype && end - begin != nbytes) {
    reader.fail(fmt::format("data_offsets [{}, {}] hold {} bytes; its shape needs {}", begin, end,
                            end - begin, nbytes));
  }
  tensor.begin = data_begin + begin;
  tensor.end = data_begin + end;
  return tensor;
}

nlohmann::ordered_json encode_metadata(const std::string& metadata_json) {
  nlohmann::ordered_json metadata = {{"format", "pt"}};
  const auto given = nlohmann::ordered_json::parse(metadata_json, nullptr, false);
  if (!given.is_object()) fail<ConfigError>("safetensors metadata is not a JSON object of texts");
  for (const auto& [key, value] : given.items()) {
    if (!value.is_string()) {
      fail<ConfigError>("safetensors metadata '{}' is not a text", key);
    }
    metadata[key] = value;
  }
  return metadata;
}

}  // namespace

SafetensorsHeader decode_safetensors_header(std::span<const std::byte> file_bytes,
                                            const std::string& file) {
  const uint64_t length = header_length(file_bytes, file);
  const std::string_view text(reinterpret_cast<const char*>(file_bytes.data()) + kLengthNbytes,
                              length);
  const nlohmann::json json = parse_json(text, file, kLengthNbytes);
  if (!json.is_object()) fail<CheckpointError>("{}: offset 8: expected a JSON object", file);
  SafetensorsHeader header;
  header.nbytes = kLengthNbytes + length;
  const uint64_t data_nbytes = file_bytes.size() - header.nbytes;
  for (const auto& [name, value] : json.items()) {
    if (name == kMetadataKey) continue;
    header.tensors.push_back(decode_tensor(name, value, header.nbytes, data_nbytes, file));
  }
  std::sort(header.tensors.begin(), header.tensors.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  uint64_t end = header.nbytes;
  for (const SafetensorsHeader::Tensor& tensor : header.tensors) {
    if (tensor.begin != end) {
      fail<CheckpointError>("{}: '{}' begins at offset {}; the tensor before it ends at {}", file,
                            tensor.name, tensor.begin, end);
    }
    end = tensor.end;
  }
  if (end != file_bytes.size()) {
    fail<CheckpointError>(
        "{}: the last tensor ends at offset {} of {} bytes: cut short, or "
        "followed by something else",
        file, end, file_bytes.size());
  }
  return header;
}

std::string encode_safetensors_header(std::vector<SafetensorsEntry>& tensors, DType dtype,
                                      const std::string& metadata_json) {
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  nlohmann::ordered_json json;
  json[kMetadataKey] = encode_metadata(metadata_json);
  uint64_t end = 0;
  for (SafetensorsEntry& tensor : tensors) {
    if (json.contains(tensor.name)) {
      fail<ConfigError>("two tensors of a safetensors file are called '{}'", tensor.name);
    }
    tensor.begin = end;
    end += tensor.nbytes;
    json[tensor.name] = {{"dtype", name_from(dtype)},
                         {"shape", tensor.shape},
                         {"data_offsets", {tensor.begin, end}}};
  }
  std::string text;
  try {
    text = json.dump();
  } catch (const nlohmann::json::exception& error) {
    fail<ConfigError>("a name in a safetensors file is not UTF-8: {}", error.what());
  }
  text.resize((text.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');
  if (text.size() > kHeaderNbytesLimit) {
    fail<ConfigError>("a safetensors header has {} bytes; expected at most {}", text.size(),
                      kHeaderNbytesLimit);
  }
  const uint64_t length = text.size();
  std::string header(kLengthNbytes, '\0');
  std::memcpy(header.data(), &length, sizeof length);
  header += text;
  for (SafetensorsEntry& tensor : tensors) tensor.begin += header.size();
  return header;
}

}  // namespace zerorun
