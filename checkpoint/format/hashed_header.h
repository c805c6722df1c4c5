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
  std::string dtype_name;  // of safetensors: "BF16"
  std::vector<int64_t> shape;
  uint64_t nbytes = 0;
  uint64_t begin = 0;  // in the file; encode sets it
  std::vector<uint64_t> hashes{};

  uint64_t end() const { return begin + nbytes; }
};

// A chunk is this long, the last one of a tensor what is left. A reader that needs part of a chunk
// has to read all of it to check its hash.
inline constexpr uint64_t kChunkNbytes = uint64_t{16} << 20;
constexpr uint64_t chunks_of(uint64_t nbytes) { return (nbytes + kChunkNbytes - 1) / kChunkNbytes; }

// The data of a file begins at a multiple of this: direct transfers need it.
inline constexpr uint64_t kHeaderAlignment = 4096;
inline constexpr uint64_t kMaxHeaderNbytes = 100'000'008;

// The first bytes of a safetensors file whose metadata holds the hashes. The length does not depend
// on them. Throws ConfigError for names that are used twice or are not UTF-8.
std::string encode_hashed_header(std::vector<HashedTensor>& tensors);
// The tensors as they lie in the file. Throws CheckpointError naming `file` unless they fill the
// rest of its `file_nbytes` bytes and each has all its hashes.
std::vector<HashedTensor> decode_hashed_header(std::string_view bytes, uint64_t file_nbytes,
                                               const std::string& file);

}  // namespace zerorun
