#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/manifest.h"
#include "zerorun/device.h"
#include "zerorun/dtype.h"
#include "zerorun/engine.h"
#include "zerorun/tensor.h"

namespace zerorun {

// The content of a record, by its parameter: the values of a frozen one, or the master of a
// trainable one; besides these, one of the optimizer's states by its name.
inline constexpr const char* kParamKind = "param";
inline constexpr const char* kMasterKind = "master";

// Elements [begin, begin + numel) of one kind of one parameter, stored as one run of bytes. A state
// with one element for each block of the parameter's counts its own.
struct ShardRecord {
  std::string parameter;
  std::string kind;
  DType dtype = DType::fp32;
  int64_t begin = 0;
  int64_t numel = 0;
  uint64_t offset = 0;  // from the end of the header
  uint64_t hash = 0;

  uint64_t nbytes() const { return static_cast<uint64_t>(numel) * size_of(dtype); }
};

// Header and data of a file begin, and records are padded, at multiples of this.
inline constexpr uint64_t kAlignment = 64;
inline constexpr uint64_t kMaxHeaderNbytes = uint64_t{1} << 28;
// A reader that needs part of a record has to read all of it to check its hash.
inline constexpr int64_t kMaxRecordNumel = int64_t{1} << 22;

// The first bytes of a file, up to its data: magic, version, length, JSON table, padding.
std::string encode_shard_header(std::span<const ShardRecord> records);
// Throws CheckpointError naming `file` unless the records lie one behind the other in a file of
// `file_nbytes`.
std::vector<ShardRecord> decode_shard_header(std::string_view bytes, uint64_t file_nbytes,
                                             const std::string& file);

// One rank's part of a save: a table, and the source of its bytes.
class ShardPlan {
 public:
  // `wanted`: which parameters.
  using Wanted = std::function<bool(const ParameterSpec&)>;
  explicit ShardPlan(
      EngineStates& engine, Wanted wanted = [](const ParameterSpec&) { return true; },
      int64_t max_record_numel = kMaxRecordNumel);

  uint64_t nbytes() const { return nbytes_; }
  // Writes and syncs the file, filling in the hashes, a chunk of the engine's states at a time.
  Manifest::ShardFile write(const std::filesystem::path& folder, const std::string& name);

 private:
  // Calls use(parameter, kind, begin, data) for each part of a record's length or less.
  template <typename Use>
  void visit(StateAccess access, const Use& use);

  EngineStates& engine_;
  const Wanted wanted_;
  const int64_t max_record_numel_;
  std::vector<ShardRecord> records_;
  uint64_t header_nbytes_ = 0;
  uint64_t nbytes_ = 0;
};

}  // namespace zerorun
