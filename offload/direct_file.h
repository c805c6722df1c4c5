#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "offload/block_io.h"

namespace zerorun {

// The purpose of a file, for messages about its folder and its space.
struct FilePurpose {
  std::string_view folder = "/zero_optimization/offload_optimizer/nvme_path";
  std::string_view content = "this rank's offloaded states";
  std::string_view instead = "offload a smaller part (offload_optimizer.ratio)";
};

// A file that each rank of a host wants; of no bytes: none.
struct FileRequest {
  std::filesystem::path folder;
  uint64_t nbytes = 0;
  FilePurpose purpose;
};

// Checks that each of `ranks` ranks of this host can have all of these files. Call it before any of
// them has made one. Throws ConfigError.
void check_room(std::span<const FileRequest> files, int ranks);

// A file without a name, for direct I/O: its space is reserved at the start and free again when
// the process ends, however it ends. The price: `ls` does not show it (`df` and `lsof` do).
class DirectFile {
 public:
  // Messages call the file by `label`. Throws ConfigError when the folder does not exist or
  // is not on a disk with direct I/O and room for `nbytes`, saying which, and IoError when others
  // took the room meanwhile; nothing is reserved then.
  DirectFile(const std::filesystem::path& folder, const std::string& label, uint64_t nbytes,
             const FilePurpose& purpose = {});
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;
  ~DirectFile();

  const OpenFile& open() const { return file_; }
  uint64_t nbytes() const { return nbytes_; }
  // All of it as memory, mapped on first use, for the lifetime of the file.
  std::byte* map();
  // Brings what was written to this part of the memory, whole pages, to the file, and frees the
  // pages.
  void flush_map(uint64_t offset, size_t nbytes);

 private:
  OpenFile file_;
  uint64_t nbytes_;
  std::byte* map_ = nullptr;
};

}  // namespace zerorun
