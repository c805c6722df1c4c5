#include "launcher/ranks/error_folder.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "launcher/environment.h"

namespace zerorun {

namespace fs = std::filesystem;

ErrorFolder::ErrorFolder(std::string path) : path_(std::move(path)) {
  std::error_code error;
  if (path_.empty() || !fs::create_directory(path_, error)) {
    path_.clear();  // also where somebody else has made it: it is not ours to remove
    return;
  }
  fs::permissions(path_, fs::perms::owner_all, error);
}

ErrorFolder::ErrorFolder(ErrorFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}

ErrorFolder& ErrorFolder::operator=(ErrorFolder&& other) noexcept {
  std::swap(path_, other.path_);
  return *this;
}

ErrorFolder::~ErrorFolder() {
  std::error_code error;
  if (!path_.empty()) fs::remove_all(path_, error);
}

std::string ErrorFolder::choose_path() {
  std::error_code error;
  const fs::path folder = fs::temp_directory_path(error);
  if (error) return {};
  constexpr size_t kLetters = 16;
  return (folder / ("zerorun_" + make_secret().substr(0, kLetters))).string();
}

}  // namespace zerorun
