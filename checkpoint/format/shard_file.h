#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "zerorun/engine.h"
#include "zerorun/tensor.h"

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

// The kind of a tensor: `param`, the values of a frozen parameter; `master`, of a trainable one; or
// the name of an optimizer state.
inline constexpr const char* kParamKind = "param";
inline constexpr const char* kMasterKind = "master";

// Elements [begin, end) of one kind of one parameter. For a state with one element per block of the
// parameter, they count elements of the state.
struct ShardInterval {
  std::string parameter;
  std::string kind;
  int64_t begin = 0;
  int64_t end = 0;

  // The tensor's name in the file: "h.0.weight.exp_avg[0:4096]".
  std::string name() const;
};
// A parameter's name without what torch.compile and checkpoint_wrapper put around its modules,
// which checkpoints had before 0.2.
std::string plain_name(std::string_view name);
// Parses the name of a tensor, whose parameter's is plain; nullopt for other text.
std::optional<ShardInterval> parse_interval(std::string_view name);

// What one rank saves: the list of tensors in its file, and access to their bytes. In the file,
// tensors are sorted by element size, the largest first, so that all are aligned.
class ShardPlan {
 public:
  // `wanted`: selects the parameters to save.
  using Wanted = std::function<bool(const ParameterSpec&)>;
  explicit ShardPlan(
      EngineStates& engine, Wanted wanted = [](const ParameterSpec&) { return true; });

  uint64_t nbytes() const { return nbytes_; }  // size of the file
  // The tensors in the order of the file, without hashes.
  const std::vector<HashedTensor>& tensors() const { return tensors_; }
  // True if read() visits the tensors in the order of the file.
  bool is_read_in_order() const { return std::is_sorted(places_.begin(), places_.end()); }
  // Calls use(tensor, data, on_host) once for each tensor, in any order. If `on_host`, `data` is in
  // host memory and valid only during the call; else it is in memory of the engine's device.
  using Use = std::function<void(size_t tensor, TensorView data, bool on_host)>;
  void read(const Use& use) const;

 private:
  template <typename Visit>
  void visit(StateAccess access, const Visit& visit) const;

  EngineStates& engine_;
  const Wanted wanted_;
  std::vector<HashedTensor> tensors_;
  std::vector<size_t> places_;  // by order of visits: index into tensors_
  uint64_t nbytes_ = 0;
};

}  // namespace zerorun
