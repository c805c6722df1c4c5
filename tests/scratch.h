#pragma once

#include "tests/common.h"
namespace zerorun::testing {

// An empty directory for one test, removed with everything in it.
class Scratch {
 public:
  Scratch() {
    std::string name = ::testing::TempDir() + "zerorun_test_XXXXXX";
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed: " + name);
    path_ = name;
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }

  const std::filesystem::path& path() const { return path_; }
  std::string path(const std::string& name) const { return (path_ / name).string(); }
  // Writes a file, its directories included; returns its path.
  std::filesystem::path write(const std::string& name, const std::string& text,
                              bool executable = false) const {
    const std::filesystem::path path = path_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
    if (executable) std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  }
  std::string read(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(path_ / name).rdbuf();
    return text.str();
  }

 private:
  std::filesystem::path path_;
};

}  // namespace zerorun::testing

namespace zerorun {

using testing::Scratch;

}  // namespace zerorun
