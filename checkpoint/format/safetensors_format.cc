#include "checkpoint/format/safetensors_format.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <tuple>
#include <unordered_set>

#include "checkpoint/format/json_reader.h"
#include "core/check.h"

namespace zerorun {

namespace {

constexpr size_t kLengthNbytes = 8;
constexpr uint64_t kHeaderNbytesLimit = 100'000'000;  // of the reference implementation
constexpr const char* kMetadataKey = "__metadata__";

// A dtype of the format, with the bytes of an element.
struct SafetensorsDType {
  std::string_view name;
  size_t nbytes;
  std::optional<DType> dtype{};  // nullopt: zerorun does not have it
};
constexpr auto kDTypes = std::to_array<SafetensorsDType>({
    {"F32", 4, DType::fp32},
    {"BF16", 2, DType::bf16},
    {"F16", 2, DType::fp16},
    {"I64", 8, DType::int64},
    {"U8", 1, DType::uint8},
    {"BOOL", 1},
    {"I8", 1},
    {"F8_E4M3", 1},
    {"F8_E5M2", 1},
    {"F8_E8M0", 1},
    {"I16", 2},
    {"U16", 2},
    {"I32", 4},
    {"U32", 4},
    {"F64", 8},
    {"U64", 8},
    {"C64", 8},
});

uint64_t header_length(std::span<const std::byte> bytes, const std::string& file) {
  uint64_t length = 0;
  if (bytes.size() < kLengthNbytes) {
    fail<CheckpointError>("{}: offset 0: {} bytes are too few for a safetensors file", file,
                          bytes.size());
  }
  std::memcpy(&length, bytes.data(), sizeof length);
  const uint64_t limit = std::min<uint64_t>(kHeaderNbytesLimit, bytes.size() - kLengthNbytes);
  if (length > limit) {
    fail<CheckpointError>("{}: offset 0: header of {} bytes; a file of {} bytes allows {}", file,
                          length, bytes.size(), limit);
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
  tensor.dtype = safetensors_dtype_from(tensor.dtype_name);
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

// Quoted and escaped. Throws ConfigError for text that is not UTF-8.
std::string json_text(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception& error) {
    fail<ConfigError>("a name in a safetensors file is not UTF-8: {}", error.what());
  }
}

}  // namespace

std::string_view safetensors_name_of(DType dtype) {
  const auto found = std::ranges::find(kDTypes, std::optional(dtype), &SafetensorsDType::dtype);
  ZR_CHECK(found != kDTypes.end(), "dtype {} has no name in safetensors", static_cast<int>(dtype));
  return found->name;
}

std::optional<DType> safetensors_dtype_from(std::string_view name) {
  const auto found = std::ranges::find(kDTypes, name, &SafetensorsDType::name);
  return found == kDTypes.end() ? std::nullopt : found->dtype;
}

size_t safetensors_size_of(std::string_view dtype_name) {
  const auto found = std::ranges::find(kDTypes, dtype_name, &SafetensorsDType::name);
  return found == kDTypes.end() ? 0 : found->nbytes;
}

SafetensorsHeader decode_safetensors_header(std::span<const std::byte> bytes, uint64_t file_nbytes,
                                            const std::string& file) {
  const uint64_t length = header_length(bytes, file);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kLengthNbytes, length);
  const nlohmann::json json = parse_json(text, file, kLengthNbytes);
  if (!json.is_object()) fail<CheckpointError>("{}: offset 8: expected a JSON object", file);
  SafetensorsHeader header;
  header.nbytes = kLengthNbytes + length;
  const uint64_t data_nbytes = file_nbytes - header.nbytes;
  for (const auto& [name, value] : json.items()) {
    if (name == kMetadataKey) continue;
    header.tensors.push_back(decode_tensor(name, value, header.nbytes, data_nbytes, file));
  }
  if (const auto metadata = json.find(kMetadataKey); metadata != json.end()) {
    for (const auto& [key, value] : metadata->items()) {
      if (value.is_string()) header.metadata.emplace(key, value.get<std::string>());
    }
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
  if (end != file_nbytes) {
    fail<CheckpointError>(
        "{}: the last tensor ends at offset {} of {} bytes: cut short, or "
        "followed by something else",
        file, end, file_nbytes);
  }
  return header;
}

std::string encode_safetensors_header(std::vector<SafetensorsEntry>& tensors,
                                      const SafetensorsMetadata& metadata, uint64_t alignment) {
  std::string text = fmt::format("{{\"{}\":{{", kMetadataKey);
  for (const auto& [key, value] : metadata) {
    text += fmt::format("{}{}:{}", text.back() == '{' ? "" : ",", json_text(key), json_text(value));
  }
  text += '}';
  std::unordered_set<std::string_view> names = {kMetadataKey};
  uint64_t end = 0;
  for (SafetensorsEntry& tensor : tensors) {
    if (!names.insert(tensor.name).second) {
      fail<ConfigError>("two tensors of a safetensors file are called '{}'", tensor.name);
    }
    tensor.begin = end;
    end += tensor.nbytes;
    text += fmt::format(",{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                        json_text(tensor.name), tensor.dtype_name, fmt::join(tensor.shape, ","),
                        tensor.begin, end);
  }
  text += '}';
  const uint64_t nbytes = kLengthNbytes + text.size();
  text.resize((nbytes + alignment - 1) / alignment * alignment - kLengthNbytes, ' ');
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
