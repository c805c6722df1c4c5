#pragma once

#include <string>

namespace zerorun {

// The temporary folder in which Python programs leave an exception for the failure report:
// PyTorch's
// @record writes it to the file that TORCHELASTIC_ERROR_FILE names.
class ErrorFolder {
 public:
  ErrorFolder() = default;
  // Makes the folder; without one (a full disk) there are no error files.
  explicit ErrorFolder(std::string path);
  ErrorFolder(ErrorFolder&& other) noexcept;
  ErrorFolder& operator=(ErrorFolder&& other) noexcept;
  // Removes it with all that is in it.
  ~ErrorFolder();

  // A path below TMPDIR that no other job has.
  static std::string choose_path();

 private:
  std::string path_;
};

}  // namespace zerorun
