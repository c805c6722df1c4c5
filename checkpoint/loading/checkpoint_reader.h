#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/files/file.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/shard_file.h"
#include "zerorun/dtype.h"

namespace zerorun {

// Reads one saved checkpoint: its manifest, and where each element of each parameter is.
class CheckpointReader {
 public:
  // One chunk of a tensor: consecutive bytes with a hash.
  struct Record {
    int parameter = 0;  // index into manifest().parameters
    int kind = 0;       // kParam, or 1 + i for manifest().states[i]
    int shard = 0;      // index into manifest().shards
    DType dtype = DType::fp32;
    int64_t begin = 0;
    int64_t numel = 0;
    uint64_t offset = 0;  // in the file
    uint64_t hash = 0;

    int64_t end() const { return begin + numel; }
    uint64_t nbytes() const { return static_cast<uint64_t>(numel) * size_of(dtype); }
  };
  static constexpr int kParam = 0;

  // Reads the manifest and the headers of all files. Throws CheckpointError unless they are intact
  // and contain every element exactly once.
  explicit CheckpointReader(std::filesystem::path folder);

  const std::filesystem::path& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  // The hash of the manifest's text, which identifies the checkpoint.
  uint64_t id() const { return id_; }
  // All chunks, sorted by parameter, kind and begin.
  std::span<const Record> records() const { return records_; }
  std::span<const Record> records_of(int parameter, int kind, int64_t begin, int64_t end) const;

  File open(int shard) const { return open(manifest_.shards[static_cast<size_t>(shard)]); }
  // Throws CheckpointError unless `hash` is the hash of the record.
  void check_hash(const Record& record, uint64_t hash) const;
  // Reads out.size() bytes of the record, from its byte `offset` on.
  void read(const File& file, const Record& record, uint64_t offset,
            std::span<std::byte> out) const;
  // The tensors that are not parameters. read_buffer() verifies their hashes.
  const std::vector<HashedTensor>& buffers() const { return buffers_; }
  void read_buffer(size_t index, std::span<std::byte> out) const;
  // "elements [0, 10) of h.0.weight (exp_avg)"
  std::string describe(const Record& record) const;

 private:
  struct Names;
  File open(const Manifest::ShardFile& entry) const;
  std::vector<HashedTensor> read_header(const Manifest::ShardFile& entry) const;
  void add_records(int shard, const Names& names);
  void check_coverage() const;
  std::string kind_name(int kind) const;

  std::filesystem::path folder_;
  Manifest manifest_;
  uint64_t id_ = 0;
  std::vector<Record> records_;
  std::vector<HashedTensor> buffers_;
};

// Reads and verifies every byte of the checkpoint in `directory` or, if it contains several, of
// each, and checks `latest`. Calls `report` with a line for each intact checkpoint as soon as it
// has been read, and then for `latest`. Throws CheckpointError if there is no checkpoint, and at
// the end if any is damaged, naming the damaged ones.
// `progress` is called as bytes are read, with the checkpoint, the bytes so far and the total.
using VerifyProgress =
    std::function<void(const std::string& folder, uint64_t nbytes, uint64_t total)>;
void verify_checkpoint(
    const std::string& directory, const std::function<void(const std::string& line)>& report,
    const VerifyProgress& progress = [](const std::string&, uint64_t, uint64_t) {});

}  // namespace zerorun
