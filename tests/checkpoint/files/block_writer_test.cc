#include "checkpoint/files/block_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "core/check.h"
#include "tests/checkpoint/file_size_limit.h"
#include "tests/checkpoint/temporary_directory.h"
#include "tests/paths.h"
#include "zerorun/error.h"

namespace zerorun {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr size_t kMiB = size_t{1} << 20;

std::string random_text(size_t nbytes) {
  std::mt19937 random(5);
  std::string text(nbytes, '\0');
  for (char& byte : text) byte = static_cast<char>(random());
  return text;
}

struct Part {
  size_t begin;
  size_t end;
};

// Two runs of parts that take turns, as tensors of two sizes of elements do.
std::vector<Part> parts_of(size_t nbytes) {
  constexpr size_t kSizes[] = {1, 4095, 4096, 4097, 100'000, kMiB + 1, 3 * kMiB, 2};
  const size_t middle = nbytes / 2 + 3;
  std::vector<Part> parts;
  size_t first = 0;
  size_t second = middle;
  for (size_t i = 0; first < middle || second < nbytes; ++i) {
    const size_t size = kSizes[i % std::size(kSizes)];
    if (first < middle) parts.push_back({first, std::min(first + size, middle)});
    first = std::min(first + size, middle);
    if (second < nbytes) parts.push_back({second, std::min(second + size + 7, nbytes)});
    second = std::min(second + size + 7, nbytes);
  }
  return parts;
}

TEST(BlockWriter, EveryByteComesToItsPlaceWithAndWithoutTheCache) {
  // On a disk: in memory there is no cache to go past.
  const auto folder =
      std::filesystem::path(test_paths::build()) / fmt::format("block_writer-{}", ::getpid());
  std::filesystem::create_directory(folder);
  for (const size_t nbytes : {size_t{1}, size_t{5000}, kMiB, 12 * kMiB, 20 * kMiB + 123}) {
    const std::string text = random_text(nbytes);
    for (const bool direct : {true, false}) {
      const auto path = folder / fmt::format("{}-{}", nbytes, direct);
      BlockWriter writer(path, nbytes, direct);
      for (const Part& part : parts_of(nbytes)) {
        std::string copy = text.substr(part.begin, part.end - part.begin);
        writer.write(part.begin, std::as_bytes(std::span(copy)));
        std::fill(copy.begin(), copy.end(), 'x');  // the bytes are the caller's again
      }
      writer.finish();
      EXPECT_TRUE(testing::read_file(path) == text) << path;
    }
  }
  std::filesystem::remove_all(folder);
}

TEST(BlockWriter, WhatCannotBeWrittenIsAnErrorThatNamesTheFile) {
  const testing::TemporaryDirectory directory;
  const std::string text = random_text(8 * kMiB);
  const testing::FileSizeLimit limit(3 * kMiB);
  for (const bool direct : {true, false}) {
    const std::string name = direct ? "direct" : "cached";
    const auto error = [&](uint64_t reserved) -> std::string {
      const auto path = directory.path() / (name + std::to_string(reserved));
      try {
        BlockWriter writer(path, reserved, direct);
        writer.write(0, std::as_bytes(std::span(text)));
        writer.finish();
      } catch (const IoError& caught) {
        return caught.what();
      }
      return "written";
    };
    EXPECT_THAT(error(8 * kMiB), AllOf(HasSubstr("cannot write 8388608 bytes to"), HasSubstr(name),
                                       HasSubstr("File too large")));
    EXPECT_THAT(error(0), AllOf(HasSubstr("cannot write"), HasSubstr(name + "0"),
                                HasSubstr("File too large")));
  }
}

}  // namespace
}  // namespace zerorun
