// What nearly every test includes: GoogleTest, the standard library, fmt, matchers by their names,
// the text of an error, and a folder to write to. It is precompiled (cmake/Precompile.cmake).
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <bit>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <iterator>
#include <latch>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <ranges>
#include <set>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "zerorun/dtype.h"
#include "zerorun/error.h"

// Absolute paths, without a slash at the end. Functions, so that only tests/paths.cc depends on
// where a clone lies, and ccache serves the other tests to every clone.
namespace zerorun::test_paths {
std::string tests();  // this folder
std::string build();  // the build's
}  // namespace zerorun::test_paths

namespace zerorun {

using namespace std::chrono_literals;

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

namespace testing {

// The text of the E that `call` throws; empty when it throws nothing.
template <typename E = Error, typename Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  return {};
}

// A text that has all of these parts; a matcher among them is one for the whole text.
template <typename... Parts>
auto HasAll(const Parts&... parts) {
  const auto one = [](const auto& part) {
    if constexpr (std::is_constructible_v<std::string, decltype(part)>) {
      return HasSubstr(std::string(part));
    } else {
      return part;
    }
  };
  return AllOf(one(parts)...);
}

// The variables of "A=1 B=2"; of those with one name the last counts.
inline std::map<std::string, std::string> variables(const std::string& text) {
  std::map<std::string, std::string> found;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    found[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
  }
  return found;
}

// Values that tests try, and all combinations of several ranges of values.
inline constexpr std::array kEither = {false, true};
inline constexpr std::array kStages = {0, 1, 2, 3};
inline constexpr std::array kFp32Bf16 = {DType::fp32, DType::bf16};
inline std::vector<std::tuple<>> each() { return std::vector<std::tuple<>>(1); }
template <typename First, typename... Rest>
auto each(const First& first, const Rest&... rest) {
  using Value = std::ranges::range_value_t<First>;
  using Tuple = decltype(std::tuple_cat(std::tuple<Value>(), each(rest...).front()));
  std::vector<Tuple> all;
  for (const Value& value : first) {
    for (const auto& others : each(rest...)) {
      all.push_back(std::tuple_cat(std::tuple<Value>(value), others));
    }
  }
  return all;
}

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

}  // namespace testing

using testing::each;
using testing::error_of;
using testing::HasAll;
using testing::kEither;
using testing::kFp32Bf16;
using testing::kStages;

using testing::Scratch;

}  // namespace zerorun

// That `call` throws an E, or any Error, whose text has all of the parts.
#define EXPECT_ERROR_OF(E, call, ...)                 \
  EXPECT_THAT(                                        \
      ::zerorun::testing::error_of<E>([&] { call; }), \
      ::testing::AllOf(::testing::Not(::testing::IsEmpty()), ::zerorun::HasAll(__VA_ARGS__)))
#define EXPECT_ERROR(call, ...) EXPECT_ERROR_OF(::zerorun::Error, call, __VA_ARGS__)
