#include "os/whole_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <optional>
#include <string>
#include <system_error>

#include "core/check.h"
#include "core/parse_number.h"
#include "os/open_file.h"
#include "os/uninterrupted.h"

namespace zerorun {

namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_to_write(const fs::path& path, int code) {
  fail<IoError>("cannot write {}: {}", path.string(), std::generic_category().message(code));
}

// `named` is the file that an error is about.
FileDescriptor open_whole_file(const fs::path& path, int flags, const fs::path& named) {
  FileDescriptor descriptor = open_file(path, flags);
  if (!descriptor) fail_to_write(named, errno);
  return descriptor;
}

void write_text_to(int descriptor, std::string_view text, const fs::path& path) {
  while (!text.empty()) {
    const ssize_t count =
        uninterrupted([&] { return ::write(descriptor, text.data(), text.size()); });
    if (count < 0) fail_to_write(path, errno);
    text.remove_prefix(static_cast<size_t>(count));
  }
}

// The number of the open file that a path in /proc/self/fd names, as /dev/stdout does.
std::optional<int> open_file_of(const fs::path& path) {
  std::error_code error;
  if (fs::canonical(path.parent_path(), error) != fs::canonical("/proc/self/fd", error)) return {};
  return parse_number(path.filename().string());
}

void replace_whole_file(const fs::path& path, std::string_view text) {
  // Its own name for each process: a file of the user's and other writers' stay as they are.
  const fs::path temporary = fs::path(path) += ".tmp-" + std::to_string(::getpid());
  std::error_code ignored;
  fs::remove(temporary, ignored);  // of a killed process that had this number
  try {
    const FileDescriptor file = open_whole_file(temporary, O_WRONLY | O_CREAT | O_EXCL, path);
    copy_permissions(path, file.get());
    write_text_to(file.get(), text, path);
    if (::fsync(file.get()) != 0) fail_to_write(path, errno);
    if (::rename(temporary.c_str(), path.c_str()) != 0) fail_to_write(path, errno);
  } catch (...) {
    fs::remove(temporary, ignored);
    throw;
  }
  sync_folder(path.has_parent_path() ? path.parent_path() : ".");
}

}  // namespace

void prepare_output_file(const fs::path& path, std::string_view what) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    fail<IoError>("{}: {} is a folder, not a file", what, path.string());
  }
  if (fs::exists(path, error) && !fs::is_regular_file(path, error)) return;  // a pipe, a device
  const fs::path folder = path.has_parent_path() ? path.parent_path() : ".";
  fs::create_directories(folder, error);
  if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    fail<IoError>("{}: cannot write to the folder of {}: {}", what, path.string(),
                  std::generic_category().message(errno));
  }
}

fs::path follow_links(fs::path path) {
  constexpr int kMaxLinks = 40;  // the kernel's limit
  std::error_code error;
  for (int links = 0; fs::is_symlink(path, error) && !open_file_of(path); ++links) {
    if (links == kMaxLinks) fail_to_write(path, ELOOP);
    const fs::path target = fs::read_symlink(path, error);
    if (error) fail_to_write(path, error.value());
    path = target.is_absolute() ? target : path.parent_path() / target;
  }
  return path;
}

void copy_permissions(const fs::path& old, int descriptor) {
  struct stat info = {};
  if (::stat(old.c_str(), &info) != 0) return;
  // Only root may give a file away; for others it is their own already.
  [[maybe_unused]] const int given = ::fchown(descriptor, info.st_uid, info.st_gid);
  if (::fchmod(descriptor, info.st_mode & 07777U) != 0) fail_to_write(old, errno);
}

void write_whole_file(const std::filesystem::path& path, std::string_view text) {
  const fs::path target = follow_links(path);
  if (const std::optional<int> open_file = open_file_of(target)) {
    std::fflush(nullptr);  // what was printed before comes before
    write_text_to(*open_file, text, path);
    return;
  }
  struct stat info = {};
  const bool exists = ::stat(target.c_str(), &info) == 0;
  if (exists && !S_ISREG(info.st_mode)) {
    const FileDescriptor file = open_whole_file(target, O_WRONLY, path);
    write_text_to(file.get(), text, path);
  } else {
    replace_whole_file(target, text);
  }
}

}  // namespace zerorun
