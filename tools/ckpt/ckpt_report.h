#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zerorun/checkpoint.h"

// The output of `zerorun ckpt`: text, or one JSON object for scripts.
namespace CLI {
class App;
}  // namespace CLI

namespace zerorun {

enum class Format { text, json };

// Lists the checkpoints of a folder with tag, step, time and size, and those that cannot be read
// with the reason.
std::string list_checkpoints(const std::string& directory, Format format);

// Describes a checkpoint: its origin and its parameters, with the norms of their values if `norms`
// is true, for which all values are read.
std::string show_checkpoint(const std::string& directory, const std::string& tag, bool norms,
                            Format format);

// Lists the differences of two checkpoints, parameter by parameter.
std::string compare_checkpoints(const std::string& one, const std::string& other, Format format);

// Removes the checkpoints that `keep` does not keep; with `dry_run` only lists them.
std::string prune_checkpoints(const std::string& directory, const Retention& keep, bool dry_run,
                              Format format);

// Values of the arguments of `zerorun ckpt`. Must exist until parsing has finished.
struct CkptArguments {
  std::string path;
  std::string other;
  std::string tag;
  Retention keep;
  bool no_norms = false;
  bool dry_run = false;
  bool json = false;
};

// Defines the subcommands ls, show, verify, diff and prune, which print their results. (import and
// export are written in Python.)
void define_ckpt(CLI::App& tools, CkptArguments& arguments);

// The values of a parameter in a checkpoint, from its master if there is one.
class SavedValues {
 public:
  // Reads and verifies the values of `parameter`, which must have data. Throws CheckpointError or
  // IoError.
  SavedValues(const SavedModel& model, size_t parameter);

  int64_t numel() const { return numel_; }
  double value(int64_t element) const;
  // The absolute difference to the same element of `other`; 0 only if they are equal. NaN equals
  // NaN.
  double distance(const SavedValues& other, int64_t element) const;
  double norm() const;  // L2 norm

 private:
  template <typename T>
  T read(int64_t element) const;

  DType dtype_;
  int64_t numel_ = 0;
  std::vector<std::byte> bytes_;
};

// True if the checkpoint has values of the parameter, that is, it is saved and not an alias.
bool has_values(const SavedModel::Parameter& parameter);
uint64_t nbytes_of(const SavedModel::Parameter& parameter);

}  // namespace zerorun
