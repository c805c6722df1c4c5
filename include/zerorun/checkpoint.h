#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "zerorun/communicator.h"
#include "zerorun/engine.h"
#include "zerorun/export.h"

namespace zerorun {

// On-disk format: docs/checkpoint_format.md.

// A tensor besides the model's parameters, such as a buffer of a module.
struct NamedTensor {
  std::string name;
  std::string dtype;  // as safetensors spells it: "F32", "BF16", "BOOL", "I64", ...
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;  // row-major; only rank 0's are saved
};

// The rule for checkpoints that stay after a save; those without an intact manifest always do.
struct Retention {
  int64_t last = 0;   // this many; 0: all
  int64_t every = 0;  // and those whose step is a multiple of it; 0: none of them
};

struct SaveOptions {
  std::string directory;     // holds one folder per tag and the file `latest`
  std::string tag;           // default "step<N>"
  std::string client_state;  // JSON text, at most 64 MiB, that load_checkpoint gives back unchanged
  bool exclude_frozen = false;  // frozen parameters are not saved; a load leaves them as they are
  bool update_latest = true;    // false: `latest` stays, so only a load that names the tag finds it
  std::string configuration{};  // JSON text of the program's settings, for those who look at it
  std::vector<NamedTensor> buffers{};
  Retention keep{};
  bool node_local = false;  // each host keeps the files of its ranks; false: one shared file system
};

struct LoadedCheckpoint {
  std::string tag;
  std::string client_state;
  int64_t step = 0;
};

// Collective. Writes <directory>/<tag> through a temporary folder (fsync, rename, then `latest`): a
// crash at any instant leaves the previous checkpoint loadable, also when the tag exists and is
// replaced. Throws IoError (full disk) on every rank, naming the one that failed. All ranks must
// see the same file system, unless SaveOptions::node_local, and only one job at a time may save to
// a directory.
ZR_API void save_checkpoint(EngineStates& engine, Communicator& comm, const SaveOptions& options);

// Bytes that this rank's part of a checkpoint takes, frozen parameters included.
ZR_API uint64_t checkpoint_nbytes(EngineStates& engine);

struct AsyncOptions {
  // Memory for snapshots; 0: as much as this rank saves of what is not offloaded, and 64 MiB at
  // least. What is larger passes through it piece by piece, and the training waits for that.
  uint64_t buffer_nbytes = 0;
  // How long rank 0 waits for the files of other ranks after its own.
  std::chrono::milliseconds peer_timeout = std::chrono::minutes(10);
};
inline constexpr uint64_t kMinSnapshotNbytes = uint64_t{64} << 20;
// The memory that AsyncSaver takes with AsyncOptions::buffer_nbytes `asked`.
ZR_API uint64_t snapshot_nbytes(EngineStates& engine, uint64_t asked = 0);

// Saves beside the training: save() returns when the states are copied, and a thread hashes, writes
// and commits. Files, promises and errors are those of save_checkpoint. Methods are for the
// engine's thread, and all but state() and wait_alone() are collective.
class ZR_API AsyncSaver {
 public:
  enum class State : uint8_t { idle, saving, saved, failed };

  // Takes its memory, pinned where there is a GPU. Engine and communicator must outlive it.
  AsyncSaver(EngineStates& engine, Communicator& comm, const AsyncOptions& options = {});
  // Abandons a save that nobody has waited for, and logs that.
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  // Waits for the save before, whose error it throws; then nothing new has begun.
  void save(const SaveOptions& options);
  // The state of this rank's part of the last save, until poll or wait has reported on it.
  State state() const;
  // True when no save is under way on any rank. Throws the error of one that has failed on some
  // rank, on all.
  bool poll();
  // Waits for the last save and throws its error, on every rank.
  void wait();
  // The same for a program that ends, without its peers: rank 0 waits for their files. Collective
  // after all with SaveOptions::node_local, where a checkpoint is complete only when poll or wait
  // has said so.
  void wait_alone();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Collective, for a checkpoint of which each host keeps a part: brings to every disk what all ranks
// read of it (its tables and buffers), so that each can load it, new hosts too. It is the one that
// the lowest rank finds; returns its folder, or "" where no rank finds one. Throws CheckpointError
// for tables that no host has.
ZR_API std::string share_checkpoint(EngineStates& engine, Communicator& comm,
                                    const std::string& directory, const std::string& tag = "");

// Collective. `tag` empty: what `latest` names, or `directory` itself when it is one tag's folder.
// Any world size and stage may load what any other saved. Brings back parameters, optimizer states,
// the step, and the groups' lr and weight_decay. Throws CheckpointError when data is damaged,
// missing, or of another model (first difference named) without having changed the engine.
// Files that are on the disk of another host alone are copied from there if this rank needs them.
// `strict` false: parameters that only the model has stay as they are, those that only the
// checkpoint has are left out; what both have must be alike.
ZR_API LoadedCheckpoint load_checkpoint(EngineStates& engine, Communicator& comm,
                                        const std::string& directory, const std::string& tag = "",
                                        bool strict = true);

// The model in a checkpoint of any world size, read without an engine.
class ZR_API SavedModel {
 public:
  struct Parameter {
    std::string name;
    std::vector<int64_t> shape;
    DType dtype = DType::fp32;  // that read() gives: of the master copy, where there is one
    bool trainable = true;
    bool saved = true;       // false: frozen, and left out
    std::string alias_of{};  // not empty: only the name is set besides
  };

  // As load_checkpoint finds it. Reads no data yet. Throws CheckpointError.
  explicit SavedModel(const std::string& directory, const std::string& tag = "");
  ~SavedModel();
  SavedModel(SavedModel&&) noexcept;
  SavedModel& operator=(SavedModel&&) noexcept;

  const std::vector<Parameter>& parameters() const;
  std::string tag() const;
  const std::string& client_state() const;
  const std::string& configuration() const;
  int64_t step() const;
  // The tensors of SaveOptions::buffers, without their bytes.
  const std::vector<NamedTensor>& buffers() const;
  // Into memory of exactly the buffer's bytes; checked against its sums.
  void read_buffer(size_t buffer, std::span<std::byte> out) const;
  // All elements, flat, into host memory of exactly their bytes; what is read is checked against
  // its sums. `parameter`: index into parameters() of one that has data.
  void read(size_t parameter, TensorView out) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct ExportTensor {
  std::string name;            // name in the file
  std::string parameter;       // engine's name
  std::vector<int64_t> shape;  // shape in the file
};

// Collective. Writes the full model as one safetensors file; each rank writes the intervals it
// holds, so none needs the whole model. `metadata_json`: object of strings for the file's header.
ZR_API void export_safetensors(EngineStates& engine, Communicator& comm, const std::string& path,
                               const std::vector<ExportTensor>& tensors,
                               const std::string& metadata_json = "{}");

// A memory-mapped safetensors file, or a Hugging Face folder with one or several of them.
class ZR_API SafetensorsReader {
 public:
  // Throws CheckpointError naming file and offset when the header is damaged.
  explicit SafetensorsReader(const std::string& path);
  ~SafetensorsReader();
  SafetensorsReader(SafetensorsReader&&) noexcept;
  SafetensorsReader& operator=(SafetensorsReader&&) noexcept;

  struct Tensor {
    std::string name;
    std::vector<int64_t> shape;
    TensorView data;
  };
  // Read-only, valid as long as the reader. Tensors of a dtype that DType lacks are left out.
  const std::vector<Tensor>& tensors() const;
  // nullptr when absent. Throws CheckpointError for a tensor of a dtype that DType lacks.
  const Tensor* find(const std::string& name) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace zerorun
