// Folders and files of tests. Without GoogleTest, which fuzz targets do not have.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace zerorun {
namespace fs = std::filesystem;
}

namespace zerorun::testing {

inline std::string read_file(const fs::path& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return std::move(bytes).str();
}
inline void write_file(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// Names in the folder, hidden ones too, sorted.
inline std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// What this process has in memory.
inline size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  size_t total = 0;
  size_t resident = 0;
  statm >> total >> resident;
  return resident * static_cast<size_t>(::getpagesize());
}

// An empty directory for one test, removed with everything in it.
class Scratch {
 public:
  Scratch() : Scratch(fs::temp_directory_path()) {}
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }

  const fs::path& path() const { return path_; }
  std::string path(const std::string& name) const { return (path_ / name).string(); }
  // Writes a file, its directories included; returns its path.
  fs::path write(const std::string& name, const std::string& text, bool executable = false) const {
    const fs::path path = path_ / name;
    fs::create_directories(path.parent_path());
    write_file(path, text);
    if (executable) fs::permissions(path, fs::perms::owner_all);
    return path;
  }
  std::string read(const std::string& name) const { return read_file(path_ / name); }

 protected:
  explicit Scratch(const fs::path& parent) {
    std::string name = (parent / "zerorun-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw fs::filesystem_error("mkdtemp", name, {});
    path_ = name;
  }

 private:
  fs::path path_;
};

// The same in memory if possible: tests of checkpoints sync hundreds of files.
struct TemporaryDirectory : Scratch {
  TemporaryDirectory()
      : Scratch(::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : fs::temp_directory_path()) {}
  std::string string() const { return path().string(); }
};

// In place: other ranks may have the file open already.
inline void flip_last_bit(const fs::path& path) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(-1, std::ios::end);
  const int last = file.get();
  file.seekp(-1, std::ios::end);
  file.put(static_cast<char>(last ^ 1));
}

// Flips a bit of the last byte of rank 1's file.
inline void flip_last_bit(const TemporaryDirectory& directory) {
  for (const auto& entry : fs::recursive_directory_iterator(directory.path())) {
    const fs::path& path = entry.path();
    if (path.filename().string().starts_with("rank00001")) flip_last_bit(path);
  }
}

// While it exists, no file of this process exceeds `nbytes`: to write(), a disk that is full.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t nbytes) {
    ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &previous_);
    const rlimit limited = {nbytes, previous_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limited);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &previous_);
    ::signal(SIGXFSZ, SIG_DFL);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit previous_ = {};
};

}  // namespace zerorun::testing
