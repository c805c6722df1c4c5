#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zerorun {

// One tensor of a checkpoint's file. Its bytes are hashed in chunks.
struct HashedTensor {
  std::string name;
  std::string dtype_name;  // in safetensors: "BF16"
  std::vector<int64_t> shape;
  uint64_t nbytes = 0;
  uint64_t begin = 0;  // in the file; set by encode_hashed_header
  std::vector<uint64_t> hashes{};

  uint64_t end() const { return begin + nbytes; }
};

// The size of a chunk; the last chunk of a tensor may be smaller. A reader that needs part of a
// chunk has to read all of it to verify its hash.
inline constexpr uint64_t kChunkNbytes = uint64_t{16} << 20;
constexpr uint64_t chunks_of(uint64_t nbytes) { return (nbytes + kChunkNbytes - 1) / kChunkNbytes; }

// The data of a file begins at a multiple of this, for direct I/O.
inline constexpr uint64_t kHeaderAlignment = 4096;
inline constexpr uint64_t kMaxHeaderNbytes = 100'000'008;

// Encodes the header of a safetensors file whose metadata contains the hashes. Its length does not
// depend on them. Throws ConfigError for names that are used twice or are not UTF-8.
std::string encode_hashed_header(std::vector<HashedTensor>& tensors);
// Decodes a header; returns the tensors in the order of the file. Throws CheckpointError that names
// `file` unless they fill the rest of its `file_nbytes` bytes and each has all its hashes.
std::vector<HashedTensor> decode_hashed_header(std::string_view bytes, uint64_t file_nbytes,
                                               const std::string& file);

}  // namespace zerorun
