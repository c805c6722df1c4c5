#pragma once

#include <cstddef>
#include <cstdint>
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
  std::vector<Tensor> tensors;  // as they lie in the file
  uint64_t nbytes = 0;          // of the file up to the first tensor
};

// Throws CheckpointError naming `file` and the offset unless the tensors fill the rest of the file
// without gap or overlap, which is what the reference implementation demands.
SafetensorsHeader decode_safetensors_header(std::span<const std::byte> file_bytes,
                                            const std::string& file);

struct SafetensorsEntry {
  std::string name;
  std::vector<int64_t> shape;
  uint64_t nbytes = 0;
  uint64_t begin = 0;  // in the file; encode sets it
};
// The header's bytes for tensors of one dtype, which are sorted by name and get their places.
// `metadata_json`: an object of texts, added to {"format": "pt"}. Throws ConfigError when it is
// not, or a name is used twice.
std::string encode_safetensors_header(std::vector<SafetensorsEntry>& tensors, DType dtype,
                                      const std::string& metadata_json);

}  // namespace zerorun
