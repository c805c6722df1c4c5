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
#include <utility>
#include <vector>

namespace zerorun::testing {

// A folder for the life of this object; in memory if possible: these tests sync hundreds of files.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    const std::filesystem::path memory = "/dev/shm";
    const bool in_memory = ::access(memory.c_str(), W_OK) == 0;
    const auto parent = in_memory ? memory : std::filesystem::temp_directory_path();
    std::string name = (parent / "checkpoint-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::filesystem::filesystem_error("mkdtemp", {});
    path_ = name;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::string string() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

inline std::string read_file(const std::filesystem::path& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return std::move(bytes).str();
}

inline void write_file(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// In place: other ranks may have the file open already.
inline void flip_last_bit(const std::filesystem::path& path) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(-1, std::ios::end);
  const int last = file.get();
  file.seekp(-1, std::ios::end);
  file.put(static_cast<char>(last ^ 1));
}

// Flips a bit of the last byte of rank 1's file.
inline void flip_last_bit(const TemporaryDirectory& directory) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory.path())) {
    const std::filesystem::path& path = entry.path();
    if (path.filename().string().starts_with("rank00001")) flip_last_bit(path);
  }
}

// Names in the folder, hidden ones too, sorted.
inline std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
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
