#include "checkpoint/files/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <charconv>
#include <new>
#include <system_error>
#include <utility>
#include <vector>

#include "core/check.h"
#include "os/open_file.h"
#include "os/uninterrupted.h"

namespace zerorun {

namespace {

std::string reason(int code) { return std::generic_category().message(code); }

// Sets or clears O_DIRECT; false where it was so before, or cannot be.
bool set_direct(int descriptor, bool direct) {
  const int flags = ::fcntl(descriptor, F_GETFL);
  if (flags < 0 || ((flags & O_DIRECT) != 0) == direct) return false;
  return ::fcntl(descriptor, F_SETFL, flags ^ O_DIRECT) == 0;
}

}  // namespace

File::File(std::filesystem::path path, int flags)
    : path_(std::move(path)), descriptor_(open_file(path_, flags)) {
  if (descriptor_) return;
  const int code = errno;
  const bool creates = (flags & O_CREAT) != 0;
  fail<IoError>("cannot {} {}: {}", creates ? "create" : "open", path_.string(), reason(code));
}

File File::create(const std::filesystem::path& path) { return {path, O_CREAT | O_EXCL | O_WRONLY}; }
// O_NONBLOCK: opening a pipe by mistake must not wait for a writer.
File File::open_to_read(const std::filesystem::path& path) { return {path, O_RDONLY | O_NONBLOCK}; }
File File::open_to_write(const std::filesystem::path& path) { return {path, O_WRONLY}; }

uint64_t File::size() const {
  struct stat info = {};
  if (::fstat(descriptor_.get(), &info) != 0) {
    fail<IoError>("cannot read the size of {}: {}", path_.string(), reason(errno));
  }
  if (!S_ISREG(info.st_mode)) fail<IoError>("{} is not a regular file", path_.string());
  return static_cast<uint64_t>(info.st_size);
}

void File::resize(uint64_t nbytes) {
  if (::ftruncate(descriptor_.get(), static_cast<off_t>(nbytes)) != 0) {
    fail<IoError>("cannot make {} {} bytes long: {}", path_.string(), nbytes, reason(errno));
  }
}

void File::reserve(uint64_t nbytes) {
  if (reserve_blocks(descriptor_.get(), nbytes) == 0) return;
  if (errno != ENOSPC && errno != EDQUOT && errno != EFBIG) return;  // it cannot reserve
  fail<IoError>("cannot write {} bytes to {}: {}", nbytes, path_.string(), reason(errno));
}

void File::write(uint64_t offset, std::span<const std::byte> bytes) {
  const size_t done = write_at(descriptor_.get(), offset, bytes);
  if (done == bytes.size()) return;
  fail<IoError>("cannot write {} bytes at offset {} of {}: {}", bytes.size() - done, offset + done,
                path_.string(), reason(errno));
}

size_t File::read(uint64_t offset, std::span<std::byte> out) const {
  size_t done = read_at(descriptor_.get(), offset, out);
  // A file system that takes O_DIRECT need not read so, nor from where the file ends.
  if (done < out.size() && errno == EINVAL && set_direct(descriptor_.get(), false)) {
    done += read_at(descriptor_.get(), offset + done, out.subspan(done));
  }
  if (done == out.size() || errno == 0) return done;
  fail<IoError>("cannot read {} bytes at offset {} of {}: {}", out.size() - done, offset + done,
                path_.string(), reason(errno));
}

void File::go_past_cache() noexcept { set_direct(descriptor_.get(), true); }

void File::sync() {
  if (uninterrupted([&] { return ::fsync(descriptor_.get()); }) != 0) {
    fail<IoError>("cannot bring {} to the disk: {}", path_.string(), reason(errno));
  }
}

void File::start_sync(uint64_t offset, uint64_t nbytes) noexcept {
  // Only a hint: what goes wrong here goes wrong again, and is reported, in sync().
  ::sync_file_range(descriptor_.get(), static_cast<off_t>(offset), static_cast<off_t>(nbytes),
                    SYNC_FILE_RANGE_WRITE);
}

void File::start_read(uint64_t offset, uint64_t nbytes) const noexcept {
  ::posix_fadvise(descriptor_.get(), static_cast<off_t>(offset), static_cast<off_t>(nbytes),
                  POSIX_FADV_WILLNEED);
}

void File::drop_cache() const noexcept {
  ::posix_fadvise(descriptor_.get(), 0, 0, POSIX_FADV_DONTNEED);
}

File create_text(const std::filesystem::path& path, const std::string& text) {
  File file = File::create(path);
  file.write(0, std::as_bytes(std::span(text)));
  file.start_sync(0, text.size());
  return file;
}

bool path_exists(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

bool entry_exists(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::symlink_status(path, ignored).type() !=
         std::filesystem::file_type::not_found;
}

void rename_path(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::error_code error;
  std::filesystem::rename(from, to, error);
  if (error) {
    fail<IoError>("cannot rename {} to {}: {}", from.string(), to.string(), error.message());
  }
}

void create_folders(const std::filesystem::path& folder) {
  std::error_code error;
  std::vector<std::filesystem::path> parents_of_new;
  std::filesystem::path path = std::filesystem::absolute(folder, error);
  for (; !error && !path_exists(path); path = path.parent_path()) {
    parents_of_new.push_back(path.parent_path());
  }
  if (!error) std::filesystem::create_directories(folder, error);
  if (!error && !std::filesystem::is_directory(folder, error) && !error) {
    error = std::make_error_code(std::errc::not_a_directory);
  }
  if (error) fail<IoError>("cannot create the folder {}: {}", folder.string(), error.message());
  for (const std::filesystem::path& parent : parents_of_new) sync_folder(parent);
}

MappedFile::MappedFile(const std::filesystem::path& path) {
  const File file = File::open_to_read(path);
  const uint64_t size = file.size();
  if (size == 0) return;  // which mmap refuses
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
  if (data == MAP_FAILED) {
    fail<IoError>("cannot map {} bytes of {}: {}", size, path.string(), reason(errno));
  }
  bytes_ = {static_cast<std::byte*>(data), size};
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

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

void Hash::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

Hash::Hash() : state_(XXH3_createState()) {
  if (!state_) throw std::bad_alloc();
  reset();
}

void Hash::reset() { XXH3_64bits_reset(state_.get()); }

void Hash::update(std::span<const std::byte> bytes) {
  XXH3_64bits_update(state_.get(), bytes.data(), bytes.size());
}

uint64_t Hash::value() const { return XXH3_64bits_digest(state_.get()); }

uint64_t hash_of(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

uint64_t hash_of(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }

std::string to_hex(uint64_t value) { return fmt::format("{:016x}", value); }

std::optional<uint64_t> from_hex(std::string_view text) {
  if (text.size() != kHexDigits || text.find_first_not_of("0123456789abcdef") != text.npos) {
    return std::nullopt;
  }
  uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value, 16);
  return value;
}

}  // namespace zerorun
