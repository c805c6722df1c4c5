#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "offload/block_io.h"
#include "os/file_descriptor.h"

namespace zerorun {

// The words for errors about a file's folder and space: the configuration key of the folder, the
// content, and what to do if there is no space.
struct FilePurpose {
  std::string_view folder = "/zero_optimization/offload_optimizer/nvme_path";
  std::string_view content = "this rank's offloaded states";
  std::string_view instead = "offload a smaller part (offload_optimizer.ratio)";
};

// A file that each rank of a host needs. nbytes of 0: no file.
struct FileRequest {
  std::filesystem::path folder;
  uint64_t nbytes = 0;
  FilePurpose purpose;
};

// Checks that each of `ranks` ranks of this host can have all of these files. Called before any
// rank creates one. Throws ConfigError.
void check_room(std::span<const FileRequest> files, int ranks);

// A file without a name, for direct I/O. Its space is reserved at the start and freed when the
// process ends, however it ends. `ls` does not show such a file; `df` and `lsof` do.
class DirectFile {
 public:
  // `label`: the file's name in errors. Throws ConfigError if the folder does not exist, is not on
  // a disk with direct I/O, or has no space for `nbytes` bytes. Throws IoError if the space was
  // taken meanwhile. Nothing is reserved then.
  DirectFile(const std::filesystem::path& folder, const std::string& label, uint64_t nbytes,
             const FilePurpose& purpose = {});
  ~DirectFile();

  const OpenFile& open() const { return file_; }
  uint64_t nbytes() const { return nbytes_; }
  // The whole file as memory. It is mapped at first use, for the lifetime of the file.
  std::byte* map();
  // Writes this part of the mapped memory, in whole pages, to the file, and frees the pages.
  void flush_map(uint64_t offset, size_t nbytes);

 private:
  FileDescriptor descriptor_;
  OpenFile file_;
  uint64_t nbytes_;
  std::byte* map_ = nullptr;
};

}  // namespace zerorun
