#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace zerorun {

// The names in a checkpoint directory:
//   <directory>/latest                                   the tag that was saved last
//   <directory>/<tag>/checkpoint.json                    the manifest; without it, not a checkpoint
//   <directory>/<tag>/rank00000-<16 hex digits>.safetensors  tensors saved by one rank
//   <directory>/<tag>/<the same>.header                  the header of such a file, on the disks of
//                                                        hosts that do not have the file itself
//   <directory>/<tag>/buffers-<16 hex digits>.safetensors    tensors that are not parameters
//   <directory>/.<name>.tmp-<16 hex digits>              unfinished, or left by a crash
inline constexpr const char* kManifestName = "checkpoint.json";
inline constexpr const char* kLatestName = "latest";

// The prefix of the tags of parts of a model that is divided among ranks. The parts are saved side
// by side.
inline constexpr std::string_view kPartPrefix = "mp_rank_";

// `save_id` is random, so that the files of two saves never have the same name.
std::string shard_name(int rank, uint64_t save_id);
bool is_shard_name(std::string_view name);
// The header of a file, on a disk that does not have the file itself.
std::filesystem::path header_path(std::filesystem::path file);
bool is_header_name(std::string_view name);
std::string buffers_name(uint64_t save_id);
bool is_buffers_name(std::string_view name);
// A temporary name next to `path`, on the same file system.
std::filesystem::path temporary_path(const std::filesystem::path& path, uint64_t save_id);
uint64_t random_id();
// An id whose upper half is the same for all saves that this process leads, and for no others.
uint64_t new_save_id();

// Throws ConfigError if `tag` cannot be the name of a tag's folder.
void check_tag(const std::string& tag);
// The names in a folder; none where it cannot be read.
std::vector<std::string> entry_names(const std::filesystem::path& folder);
// The folders that have a manifest, sorted by name, with digits compared by value ("step9" before
// "step10").
std::vector<std::string> list_tags(const std::filesystem::path& directory);
// The tag that `latest` names. Throws CheckpointError that lists the existing tags.
std::string read_latest(const std::filesystem::path& directory);
// Returns <directory>/<tag>. An empty tag means the one that `latest` names, or `directory` itself
// if it is the folder of a tag. Throws CheckpointError that lists the existing tags if there is no
// checkpoint.
std::filesystem::path find_checkpoint(const std::filesystem::path& directory,
                                      const std::string& tag);

// Removes unfinished entries of crashed saves from the directory, as far as possible, but none of
// the process that leads the save `save_id`: another of its saves may be under way. Returns how
// many were removed.
int remove_leftovers(const std::filesystem::path& directory, uint64_t save_id);
// Removes unfinished versions of one file.
int remove_leftovers_of(const std::filesystem::path& path);

}  // namespace zerorun
