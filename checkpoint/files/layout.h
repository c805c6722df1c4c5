#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace zerorun {

// Names in a checkpoint directory:
//   <directory>/latest                                   the tag that was saved last
//   <directory>/<tag>/checkpoint.json                    the manifest; without it, not a checkpoint
//   <directory>/<tag>/rank00000-<16 hex digits>.safetensors  what one rank saved
//   <directory>/<tag>/<the same>.header                  its first bytes, on the disks of hosts
//                                                        that do not keep the file itself
//   <directory>/<tag>/buffers-<16 hex digits>.safetensors    what no rank's shard holds
//   <directory>/.<name>.tmp-<16 hex digits>              unfinished, or left by a crash
inline constexpr const char* kManifestName = "checkpoint.json";
inline constexpr const char* kLatestName = "latest";

// Tags of the parts of a model that is divided among ranks begin so, and are saved side by side.
inline constexpr std::string_view kPartPrefix = "mp_rank_";

// `save_id` is random, so that the files of two saves never have the same name.
std::string shard_name(int rank, uint64_t save_id);
bool is_shard_name(std::string_view name);
// The header of a file, on a disk that does not have the file itself.
std::filesystem::path header_path(std::filesystem::path file);
bool is_header_name(std::string_view name);
std::string buffers_name(uint64_t save_id);
bool is_buffers_name(std::string_view name);
// Beside `path`, on the same file system.
std::filesystem::path temporary_path(const std::filesystem::path& path, uint64_t save_id);
uint64_t random_id();

// Throws ConfigError when it cannot be the name of a tag's folder.
void check_tag(const std::string& tag);
// Folders that hold a manifest, sorted, digits by value ("step9" before "step10").
std::vector<std::string> list_tags(const std::filesystem::path& directory);
// The tag that `latest` names. Throws CheckpointError listing the tags there are.
std::string read_latest(const std::filesystem::path& directory);
// <directory>/<tag>; an empty tag means what `latest` names, or `directory` itself when it is one
// tag's folder. Throws CheckpointError listing the tags there are when it holds no checkpoint.
std::filesystem::path find_checkpoint(const std::filesystem::path& directory,
                                      const std::string& tag);

// Removes what crashed saves left unfinished in the directory. Returns how many entries. What
// cannot be removed stays.
int remove_leftovers(const std::filesystem::path& directory);
// The same for unfinished versions of one file.
int remove_leftovers_of(const std::filesystem::path& path);

}  // namespace zerorun
