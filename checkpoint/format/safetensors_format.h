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

// The header of a safetensors file: 8 bytes with its length, then JSON that says where each
// tensor's bytes are. https://github.com/huggingface/safetensors#format
struct SafetensorsHeader {
  struct Tensor {
    std::string name;
    std::string dtype_name;      // "BF16"
    std::optional<DType> dtype;  // nothing: a dtype that zerorun has no type for
    std::vector<int64_t> shape;
    uint64_t begin = 0;  // in the file
    uint64_t end = 0;
  };
  std::vector<Tensor> tensors;                  // as they lie in the file
  std::map<std::string, std::string> metadata;  // texts that are none are left out
  uint64_t nbytes = 0;                          // of the file up to the first tensor
};

// `bytes`: the beginning of a file of `file_nbytes`, at least its header. Throws CheckpointError
// naming `file` and the offset unless the tensors fill the rest of the file without gap or overlap,
// which is what the reference implementation demands.
SafetensorsHeader decode_safetensors_header(std::span<const std::byte> bytes, uint64_t file_nbytes,
                                            const std::string& file);

struct SafetensorsEntry {
  std::string name;
  std::string dtype_name;  // "BF16"
  std::vector<int64_t> shape;
  uint64_t nbytes = 0;
  uint64_t begin = 0;  // in the file; encode sets it
};
using SafetensorsMetadata = std::vector<std::pair<std::string, std::string>>;
// The header's bytes, a multiple of `alignment`, for tensors that lie in the file as they are
// listed, and get their places. Throws ConfigError when two have one name, or one is not UTF-8.
std::string encode_safetensors_header(std::vector<SafetensorsEntry>& tensors,
                                      const SafetensorsMetadata& metadata, uint64_t alignment = 8);

// "BF16" for bf16, and back; nothing for one that zerorun has no type for.
std::string_view safetensors_name_of(DType dtype);
std::optional<DType> safetensors_dtype_from(std::string_view name);
// Bytes of an element of any dtype of the format; 0: there is no such dtype of whole bytes.
size_t safetensors_size_of(std::string_view dtype_name);

}  // namespace zerorun
