#include "checkpoint/files/mapped_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "checkpoint/files/file.h"
#include "core/check.h"

namespace zerorun {

MappedFile::MappedFile(const std::filesystem::path& path) {
  const File file = File::open_to_read(path);
  const uint64_t size = file.size();
  if (size == 0) return;  // which mmap refuses
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
  if (data == MAP_FAILED) {
    fail<IoError>("cannot map {} bytes of {}: {}", size, path.string(),
                  std::generic_category().message(errno));
  }
  bytes_ = {static_cast<std::byte*>(data), size};
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

void MappedFile::forget(std::span<const std::byte> part) const {
  const std::byte* const begin = bytes_.data();
  if (part.empty() || part.data() < begin || part.data() >= begin + bytes_.size()) return;
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t first = static_cast<size_t>(part.data() - begin) / page * page;
  const size_t last = static_cast<size_t>(part.data() - begin) + part.size();
  ::madvise(bytes_.data() + first, last - first, MADV_DONTNEED);
}

}  // namespace zerorun
