#include "checkpoint/files/block_writer.h"

#include "core/check.h"
#include "tests/checkpoint/temporary_directory.h"
#include "tests/common.h"
#include "tests/error_of.h"
#include "tests/paths.h"
#include "zerorun/error.h"

namespace zerorun {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

std::string random_text(size_t nbytes) {
  std::mt19937_64 random(5);
  std::vector<uint64_t> words(nbytes / sizeof(uint64_t) + 1);
  for (uint64_t& word : words) word = random();
  return {reinterpret_cast<const char*>(words.data()), nbytes};
}

struct Part {
  size_t begin;
  size_t end;
};

// Two runs of parts that take turns, as tensors of two sizes of elements do.
std::vector<Part> parts_of(size_t nbytes) {
  constexpr size_t kSizes[] = {1, 4095, 4096, 4097, 100'000, kMiB + 1, 3 * kMiB, 2};
  const size_t middle = std::min(nbytes, nbytes / 2 + 3);
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

// The bytes of a file in memory, `shift` bytes after the beginning of a page.
class Image {
 public:
  Image(const std::string& text, size_t shift)
      : memory_(static_cast<char*>(std::aligned_alloc(4096, (text.size() / 4096 + 3) * 4096))),
        bytes_(std::as_writable_bytes(std::span(memory_.get() + shift, text.size()))) {
    std::memcpy(bytes_.data(), text.data(), text.size());
  }
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  std::unique_ptr<char, Free> memory_;
  std::span<std::byte> bytes_;
};

// Writes a file, on a disk: in memory there is no cache to go past.
void expect_written(size_t nbytes, size_t shift, bool in_place) {
  const std::string text = random_text(nbytes);
  const auto path =
      std::filesystem::path(test_paths::build()) / fmt::format("block_writer-{}", ::getpid());
  for (const bool direct : {true, false}) {
    const Image image(text, shift);
    BlockWriter writer(path, nbytes, direct);
    size_t i = 0;
    for (const Part& part : parts_of(nbytes)) {
      const auto bytes = image.bytes().subspan(part.begin, part.end - part.begin);
      if (!in_place || i++ % 5 == 4) {  // some among them are copied
        writer.write(part.begin, bytes);
        std::memset(bytes.data(), 'x', bytes.size());  // the bytes are the caller's again
        continue;
      }
      writer.write_in_place(part.begin, bytes);
      if (i % 7 != 0) continue;
      writer.flush();
      std::memset(bytes.data(), 'y', bytes.size());  // the caller's again
    }
    writer.finish();
    EXPECT_TRUE(read_file(path) == text) << nbytes << " bytes from " << shift << ", " << direct;
    std::filesystem::remove(path);
  }
}

TEST(BlockWriter, EveryByteComesToItsPlaceWithAndWithoutTheCache) {
  for (const size_t nbytes : {size_t{1}, size_t{5000}, kMiB, 12 * kMiB, 20 * kMiB + 123}) {
    expect_written(nbytes, 0, false);
  }
}

TEST(BlockWriter, BytesInPlaceComeToTheirPlaceWhereverTheyLie) {
  for (const size_t nbytes : {5 * kMiB + 123, 20 * kMiB + 123}) {  // without and with threads
    for (const size_t shift : {0, 512, 1}) expect_written(nbytes, shift, true);
  }
}

TEST(BlockWriter, WhatCannotBeWrittenIsAnErrorThatNamesTheFile) {
  const TemporaryDirectory directory;
  const std::string text = random_text(8 * kMiB);
  const FileSizeLimit limit(3 * kMiB);
  for (const bool direct : {true, false}) {
    const auto error = [&](uint64_t reserved) {
      return error_of<IoError>([&] {
        BlockWriter writer(directory.path() / fmt::format("{}-{}", reserved, direct), reserved,
                           direct);
        writer.write(0, std::as_bytes(std::span(text)));
        writer.finish();
      });
    };
    EXPECT_THAT(error(8 * kMiB), AllOf(HasSubstr("cannot write 8388608 bytes to"),
                                       HasSubstr("/8388608-"), HasSubstr("File too large")));
    EXPECT_THAT(error(0),
                AllOf(HasSubstr("cannot write"), HasSubstr("/0-"), HasSubstr("File too large")));
  }
}

}  // namespace
}  // namespace zerorun
