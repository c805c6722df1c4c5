#pragma once

#include <string>

#include "zerorun/checkpoint.h"

// Texts of `zerorun ckpt` about checkpoints: for people, or one JSON object for scripts.
namespace zerorun {

enum class Format { text, json };

// The checkpoints of a folder: tag, step, when, size; those that cannot be read, with the reason.
std::string list_checkpoints(const std::string& directory, Format format);

// One checkpoint: where it came from, and its parameters, with the norms of their values unless
// `norms` is false, for which all of them are read.
std::string show_checkpoint(const std::string& directory, const std::string& tag, bool norms,
                            Format format);

// Lists the differences of two checkpoints, parameter by parameter.
std::string compare_checkpoints(const std::string& one, const std::string& other, Format format);

// Removes the checkpoints that the rule does not keep; with `dry_run` only says which.
std::string prune_checkpoints(const std::string& directory, const Retention& keep, bool dry_run,
                              Format format);

}  // namespace zerorun
