#pragma once

#include <string>

#include "zerorun/checkpoint.h"

// The output of `zerorun ckpt`: text, or one JSON object for scripts.
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

}  // namespace zerorun
