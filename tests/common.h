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

#include <array>
#include <atomic>
#include <barrier>
#include <bit>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <exception>
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
#include <stdexcept>
#include <string_view>
#include <thread>
#include <tuple>

#include "tests/folders.h"
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

using ::testing::AllOf, ::testing::AnyOf, ::testing::Contains, ::testing::ContainsRegex,
    ::testing::Each, ::testing::ElementsAre, ::testing::EndsWith, ::testing::FieldsAre,
    ::testing::HasSubstr, ::testing::IsEmpty, ::testing::IsSupersetOf, ::testing::Le,
    ::testing::MatchesRegex, ::testing::Not, ::testing::SizeIs, ::testing::StartsWith,
    ::testing::TestParamInfo, ::testing::TestWithParam, ::testing::UnorderedElementsAre,
    ::testing::Values, ::testing::ValuesIn, ::testing::WithParamInterface;

using Strings = std::vector<std::string>;
using TextMatcher = ::testing::Matcher<const std::string&>;

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

// Runs `body(rank)` on threads of this process. Rethrows the error of the lowest failing rank.
inline void run_threads(int world_size, const std::function<void(int)>& body) {
  std::vector<std::exception_ptr> errors(static_cast<size_t>(world_size));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (...) {
        errors[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
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

}  // namespace testing

using testing::each, testing::error_of, testing::HasAll, testing::kEither, testing::kFp32Bf16,
    testing::kStages, testing::Scratch;

}  // namespace zerorun

// That a text has all of these parts.
#define EXPECT_HAS(text, ...) EXPECT_THAT(text, ::zerorun::HasAll(__VA_ARGS__))
// That `call` throws an E, or any Error, whose text has all of the parts.
#define EXPECT_ERROR_OF(E, call, ...)                 \
  EXPECT_THAT(                                        \
      ::zerorun::testing::error_of<E>([&] { call; }), \
      ::testing::AllOf(::testing::Not(::testing::IsEmpty()), ::zerorun::HasAll(__VA_ARGS__)))
#define EXPECT_ERROR(call, ...) EXPECT_ERROR_OF(::zerorun::Error, call, __VA_ARGS__)
