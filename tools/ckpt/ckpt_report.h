#pragma once

#include <cstdint>
#include <string>

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

}  // namespace zerorun
