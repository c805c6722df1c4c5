#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "zerorun/dtype.h"

namespace zerorun {

// The header of a safetensors file: 8 bytes with its length, then JSON with the position of each
// tensor. https://github.com/huggingface/safetensors#format
struct SafetensorsHeader {
  struct Tensor {
    std::string name;
    std::string dtype_name;      // "BF16"
    std::optional<DType> dtype;  // nullopt: zerorun does not have the dtype
    std::vector<int64_t> shape;
    uint64_t begin = 0;  // in the file
    uint64_t end = 0;
  };
  std::vector<Tensor> tensors;                  // in the order of the file
  std::map<std::string, std::string> metadata;  // without values that are not strings
  uint64_t nbytes = 0;                          // bytes of the file before the first tensor
};

// `bytes`: the beginning of a file of `file_nbytes` bytes, at least its header. Throws
// CheckpointError that names `file` and the offset unless the tensors fill the rest of the file
// without gaps or overlaps, which the reference implementation also requires.
SafetensorsHeader decode_safetensors_header(std::span<const std::byte> bytes, uint64_t file_nbytes,
                                            const std::string& file);

struct SafetensorsEntry {
  std::string name;
  std::string dtype_name;  // "BF16"
  std::vector<int64_t> shape;
  uint64_t nbytes = 0;
  uint64_t begin = 0;  // in the file; set by encode_safetensors_header
};
using SafetensorsMetadata = std::vector<std::pair<std::string, std::string>>;
// Encodes the header for tensors that are in the file in this order, and sets their positions. Its
// length is a multiple of `alignment`. Throws ConfigError if two tensors have the same name or a
// name is not UTF-8.
std::string encode_safetensors_header(std::vector<SafetensorsEntry>& tensors,
                                      const SafetensorsMetadata& metadata, uint64_t alignment = 8);

// Convert between a dtype and its name in safetensors ("BF16" for bf16). nullopt for a dtype that
// zerorun does not have.
std::string_view safetensors_name_of(DType dtype);
std::optional<DType> safetensors_dtype_from(std::string_view name);
// Bytes per element of any dtype of the format; 0 if there is no such dtype of whole bytes.
size_t safetensors_size_of(std::string_view dtype_name);

}  // namespace zerorun
