#pragma once

#include <string>

namespace zerorun {

// The temporary folder for the exceptions that Python programs leave for the failure report:
// PyTorch's @record writes them to the file that TORCHELASTIC_ERROR_FILE names.
class ErrorFolder {
 public:
  ErrorFolder() = default;
  // Creates the folder. If that fails (a full disk), there are no error files.
  explicit ErrorFolder(std::string path);
  ErrorFolder(ErrorFolder&& other) noexcept;
  ErrorFolder& operator=(ErrorFolder&& other) noexcept;
  // Removes the folder and its content.
  ~ErrorFolder();

  // Chooses a unique path below TMPDIR.
  static std::string choose_path();

 private:
  std::string path_;
};

}  // namespace zerorun
