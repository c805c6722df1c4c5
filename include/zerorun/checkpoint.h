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

// A tensor that is saved in addition to the model's parameters, such as a buffer of a module.
struct NamedTensor {
  std::string name;
  std::string dtype;  // as safetensors spells it: "F32", "BF16", "BOOL", "I64", ...
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;  // row-major; only those of rank 0 are saved
};

// Which checkpoints of a directory a save keeps; it removes the others. A checkpoint without an
// intact manifest is never removed.
struct Retention {
  int64_t last = 0;   // number of the newest checkpoints to keep; 0: all
  int64_t every = 0;  // also keep checkpoints whose step is a multiple of this; 0: none
};

struct SaveOptions {
  std::string directory;        // holds one folder per tag and the file `latest`
  std::string tag;              // default "step<N>"
  std::string client_state;     // JSON text, at most 64 MiB; load_checkpoint returns it unchanged
  bool exclude_frozen = false;  // do not save frozen parameters; a load does not change them then
  // false: leave `latest` as it is, so that only a load of this tag finds the checkpoint
  bool update_latest = true;
  std::string configuration{};  // JSON text of the program's settings, for information
  std::vector<NamedTensor> buffers{};
  Retention keep{};
  // true: each host keeps the files of its ranks; false: all ranks use one shared file system
  bool node_local = false;
};

struct LoadedCheckpoint {
  std::string tag;
  std::string client_state;
  int64_t step = 0;
};

// Saves a checkpoint to <directory>/<tag>. Collective. The files are written to a temporary folder,
// which is synced (fsync) and renamed before `latest` is updated: a crash at any instant leaves the
// previous checkpoint loadable, even if an existing tag is replaced. Throws IoError (such as a full
// disk) on every rank, naming the rank that failed. All ranks must see the same file system unless
// SaveOptions::node_local is set. A save of this job's AsyncSaver may be under way; `latest` names
// the one that is committed last. Only one job at a time may save to a directory.
ZR_API void save_checkpoint(EngineStates& engine, Communicator& comm, const SaveOptions& options);

// Returns the size in bytes of this rank's part of a checkpoint, frozen parameters included.
ZR_API uint64_t checkpoint_nbytes(EngineStates& engine);

struct AsyncOptions {
  // Bytes of memory for the copy of the states. 0: the size of this rank's states that are not
  // offloaded, at least 64 MiB but never more than all of its states. If the states are larger than
  // this memory, they pass through the memory piece by piece while the training waits.
  uint64_t buffer_nbytes = 0;
  // How long rank 0 waits for the files of other ranks after its own.
  std::chrono::milliseconds peer_timeout = std::chrono::minutes(10);
};
inline constexpr uint64_t kMinSnapshotNbytes = uint64_t{64} << 20;
// Returns the bytes that AsyncSaver allocates if AsyncOptions::buffer_nbytes is `asked`.
ZR_API uint64_t snapshot_nbytes(EngineStates& engine, uint64_t asked = 0);

// Saves checkpoints while training continues: save() returns as soon as the states are copied; a
// thread then hashes, writes and commits them. Files, guarantees and errors are those of
// save_checkpoint. Call the methods on the engine's thread. All except state() and wait_alone() are
// collective.
class ZR_API AsyncSaver {
 public:
  enum class State : uint8_t { idle, saving, saved, failed };

  // Allocates the memory for the copy, pinned if there is a GPU. Engine and communicator must
  // outlive this object.
  AsyncSaver(EngineStates& engine, Communicator& comm, const AsyncOptions& options = {});
  // Abandons a save that has not been waited for, and logs an error.
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  // Starts a save. First waits for the previous save; if that failed, throws its error and starts
  // nothing.
  void save(const SaveOptions& options);
  // Returns the state of this rank's part of the last save. After poll or wait has reported its
  // result, the state is idle.
  State state() const;
  // Returns true if no save is in progress on any rank. If a save failed on some rank, throws its
  // error on all ranks.
  bool poll();
  // Waits for the last save. If it failed on some rank, throws its error on all ranks.
  void wait();
  // Like wait(), but not collective, for a program that is about to end: rank 0 waits for the files
  // of the other ranks. With SaveOptions::node_local it is collective, because then only poll or
  // wait can tell that a checkpoint is complete.
  void wait_alone();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Prepares the loading of a checkpoint of which each host keeps a part. Collective. Copies the
// files that all ranks read (tables and buffers) to every disk, so that every host can load the
// checkpoint, including new hosts. Without `tag` that is the checkpoint which the `latest` of the
// lowest rank's host names, or that of a host with a later step if the job's ranks find all its
// files; a warning tells of such hosts. Returns its folder, or "" if no rank finds one. Throws
// CheckpointError if no host has the tables.
ZR_API std::string share_checkpoint(EngineStates& engine, Communicator& comm,
                                    const std::string& directory, const std::string& tag = "");

// Loads a checkpoint. Collective. If `tag` is empty, loads the tag that `latest` names, or
// `directory` itself if it is the folder of one tag. World size and stage may differ from those of
// the run that saved it. Restores parameters, optimizer states, the step, and lr and weight_decay
// of the parameter groups. Throws CheckpointError if data is damaged, missing, or of another model
// (naming the first difference); the engine is unchanged then. Files that this rank needs and only
// another host has are copied from there. With `strict` false, parameters that only the model has
// keep their values, and those that only the checkpoint has are ignored; shapes and dtypes of
// common parameters must still match.
ZR_API LoadedCheckpoint load_checkpoint(EngineStates& engine, Communicator& comm,
                                        const std::string& directory, const std::string& tag = "",
                                        bool strict = true);

// Reads the model of a checkpoint without an engine. The checkpoint may have been saved by any
// number of ranks.
class ZR_API SavedModel {
 public:
  struct Parameter {
    std::string name;
    std::vector<int64_t> shape;
    // dtype that read() returns: that of the master parameter if there is one
    DType dtype = DType::fp32;
    bool trainable = true;
    bool saved = true;  // false: the parameter is frozen and was not saved
    // tied parameter: name of the parameter whose data it shares; other members are unset
    std::string alias_of{};
  };

  // Finds the checkpoint as load_checkpoint does. Does not read the parameters' data. Throws
  // CheckpointError.
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
  // Reads a buffer into `out`, which must have exactly the size of the buffer, and verifies its
  // checksums.
  void read_buffer(size_t buffer, std::span<std::byte> out) const;
  // Reads all elements of a parameter, flattened, into host memory `out`, which must have exactly
  // their size, and verifies the checksums. `parameter` is an index into parameters(); the
  // parameter must have been saved.
  void read(size_t parameter, TensorView out) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct ExportTensor {
  std::string name;            // name of the tensor in the file
  std::string parameter;       // name of the engine's parameter
  std::vector<int64_t> shape;  // shape of the tensor in the file
};

// Writes the full model to one safetensors file. Collective. Each rank writes the intervals that it
// holds, so no rank needs memory for the whole model. `metadata_json` is a JSON object of strings
// for the file's header.
ZR_API void export_safetensors(EngineStates& engine, Communicator& comm, const std::string& path,
                               const std::vector<ExportTensor>& tensors,
                               const std::string& metadata_json = "{}");

// Maps a safetensors file into memory, or all safetensors files of a Hugging Face folder.
class ZR_API SafetensorsReader {
 public:
  // Throws CheckpointError naming file and offset if a header is damaged.
  explicit SafetensorsReader(const std::string& path);
  ~SafetensorsReader();
  SafetensorsReader(SafetensorsReader&&) noexcept;
  SafetensorsReader& operator=(SafetensorsReader&&) noexcept;

  struct Tensor {
    std::string name;
    std::vector<int64_t> shape;
    TensorView data;
  };
  // Returns the tensors. Their data is read-only and valid as long as the reader. Tensors whose
  // dtype is not in DType are omitted.
  const std::vector<Tensor>& tensors() const;
  // Returns the tensor of that name, or nullptr if there is none. Throws CheckpointError if its
  // dtype is not in DType.
  const Tensor* find(const std::string& name) const;
  // Gives back the memory of a part of a tensor that is not needed now. Its data stay valid: they
  // are read from the file again when they are accessed.
  void forget(TensorView part) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace zerorun
