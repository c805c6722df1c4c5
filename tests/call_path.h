#pragma once

#include <dlfcn.h>
#include <execinfo.h>

#include "core/check.h"
#include "tests/common.h"

// Compares stacks with the paths that ARCHITECTURE.md lists.
namespace zerorun::call_path {

using Frames = std::vector<void*>;

// Return addresses, from the caller's on outwards.
[[gnu::noinline]] inline Frames stack() {
  Frames frames(128);
  frames.resize(static_cast<size_t>(backtrace(frames.data(), static_cast<int>(frames.size()))));
  frames.erase(frames.begin());  // of this function
  return frames;
}

// The functions around an address, innermost first, as addr2line knows them: with debugging
// information those that were inlined too. "EngineImpl::grad_ready".
inline std::vector<std::string> functions_at(void* address) {
  Dl_info info{};
  if (dladdr(address, &info) == 0) return {};
  const auto offset =
      reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(info.dli_fbase) - 1;
  const std::string command =
      fmt::format("addr2line -Cfi -e /proc/{}/exe {:#x} 2>/dev/null", getpid(), offset);
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::vector<std::string> functions;
  std::array<char, 4096> line{};
  for (bool name = true; fgets(line.data(), line.size(), pipe.get()) != nullptr; name = !name) {
    if (!name) continue;  // a line of file and place
    std::string text = line.data();
    if (text.find("{lambda") != std::string::npos) continue;  // a part of a function above it
    for (const std::string part :
         {"(anonymous namespace)::", "zerorun::", "testing::", "Wrapped"}) {
      for (size_t at = 0; (at = text.find(part)) != std::string::npos;) text.erase(at, part.size());
    }
    // The implementation of Communicator.
    if (const size_t at = text.find("GroupCommunicator"); at != std::string::npos)
      text.erase(at, 5);
    text = text.substr(0, text.find_first_of("(\n"));
    if (text.find_first_of(" <") == std::string::npos) functions.push_back(text);  // no template's
  }
  return functions;
}

// True for the standard library's, which calls a std::function's content where nothing is inlined.
inline bool is_library(const std::string& function) {
  return function.starts_with("std::") || function == "_M_invoke";
}

inline std::string section(const std::string& title) {
  std::ifstream file(test_paths::tests() + "/../ARCHITECTURE.md");
  std::stringstream text;
  text << file.rdbuf();
  const std::string all = text.str();
  const size_t begin = all.find("## " + title + "\n");
  ZR_CHECK(begin != std::string::npos, "ARCHITECTURE.md has no section '{}'", title);
  return all.substr(begin, all.find("\n## ", begin + 1) - begin);
}

// `frames` of a collective that a function with a stack of `caller` frames asked for: at most
// `limit` functions, the collective included, and all that addr2line knows are named in that
// section, in their order. A build that inlines has fewer, one with debugging information names
// those too.
inline void expect_path(const Frames& frames, size_t caller, size_t limit,
                        const std::string& title) {
  ASSERT_GT(frames.size(), caller) << "no collective";
  const size_t between = frames.size() - caller;
  size_t own = 1;  // with the collective
  const std::string text = section(title);
  size_t at = 0;
  for (size_t i = between; i-- > 1;) {  // from the outermost on; 0 is this test's communicator
    std::vector<std::string> functions = functions_at(frames[i]);
    std::reverse(functions.begin(), functions.end());
    if (functions.empty() || !std::all_of(functions.begin(), functions.end(), is_library)) ++own;
    for (const std::string& function : functions) {
      if (is_library(function) || function.find("operator") != std::string::npos) continue;
      // Under AddressSanitizer backtrace() has a frame of its own before these.
      if (function.starts_with("call_path::")) continue;
      const size_t found = text.find(function, at);
      EXPECT_NE(found, std::string::npos) << function << " is not in its place in: " << text;
      if (found != std::string::npos) at = found;
    }
  }
  EXPECT_LE(own, limit) << title;
}

}  // namespace zerorun::call_path
