#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

// Functions of a library as members of a struct, from a LIST(X) of X(member, symbol): declared,
// found in `library` (a SharedLibrary), or linked, as those of a fake are.
#define ZR_DECLARE_FUNCTION(member, symbol) decltype(symbol)* member = nullptr;
#define ZR_FIND_FUNCTION(member, symbol) .member = library.function<decltype(symbol)>(#symbol),
#define ZR_LINKED_FUNCTION(member, symbol) .member = symbol,

namespace zerorun {

// A shared library that is opened at run time and stays open until the process ends.
class SharedLibrary {
 public:
  // Opens the copy that the process has already loaded under one of `names` (sonames; PyTorch has
  // its own copies), else the first of them that the dynamic loader finds. Throws DeviceError with
  // the messages of the loader.
  explicit SharedLibrary(std::span<const std::string> names);

  // Returns a function of the library. Throws DeviceError that names it if there is none.
  template <typename Function>
  Function* function(const char* name) const {
    return reinterpret_cast<Function*>(symbol(name));
  }
  // Path of the file that was opened.
  const std::string& path() const { return path_; }

 private:
  void* symbol(const char* name) const;

  void* handle_ = nullptr;
  std::string path_;
};

// Returns a line for `zerorun env`: "NAME 1.2.3 (file)", or that the library is missing, with the
// reason and `remedy`.
std::string describe_library(std::string_view name, std::span<const std::string> files,
                             const std::function<std::string(const SharedLibrary&)>& version,
                             std::string_view remedy);

}  // namespace zerorun
