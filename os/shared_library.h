#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace zerorun {

// A library that is opened at run time and stays open to the end of the process.
class SharedLibrary {
 public:
  // The copy that the process already has under one of `names` (sonames; PyTorch brings its own
  // copies), else the first of them that the system's loader finds. Throws DeviceError with the
  // loader's reasons.
  explicit SharedLibrary(std::span<const std::string> names);

  // A function of the library; throws DeviceError naming it when there is none.
  template <typename Function>
  Function* function(const char* name) const {
    return reinterpret_cast<Function*>(symbol(name));
  }
  // The same, as what `found` is a pointer to.
  template <typename Function>
  void find(Function*& found, const char* name) const {
    found = function<Function>(name);
  }
  // The file that was opened.
  const std::string& path() const { return path_; }

 private:
  void* symbol(const char* name) const;

  void* handle_ = nullptr;
  std::string path_;
};

// For `zerorun env`: "NAME 1.2.3 (file)", or that the library is missing, why, and `remedy`.
std::string describe_library(std::string_view name, std::span<const std::string> files,
                             const std::function<std::string(const SharedLibrary&)>& version,
                             std::string_view remedy);

}  // namespace zerorun
