#include "checkpoint/files/block_writer.h"

#include "checkpoint/saving/save.h"
#include "core/check.h"
#include "tests/checkpoint/temporary_directory.h"
#include "tests/common.h"

namespace zerorun::testing {
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
    EXPECT_THAT(error(8 * kMiB),
                HasAll("cannot write 8388608 bytes to", "/8388608-", "File too large"));
    EXPECT_THAT(error(0), HasAll("cannot write", "/0-", "File too large"));
  }
}

using Piece = SnapshotQueue::Piece;

std::vector<std::byte> random_bytes(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Where tensors begin in a file that holds them one after the other.
std::vector<uint64_t> places_of(const std::vector<std::vector<std::byte>>& tensors) {
  std::vector<uint64_t> places = {8192};
  for (const auto& tensor : tensors) places.push_back(places.back() + tensor.size());
  return places;
}

// Copies tensors into the queue, as a snapshot does.
void copy_all(SnapshotQueue& queue, const std::vector<std::vector<std::byte>>& tensors,
              const std::vector<size_t>& order) {
  const std::vector<uint64_t> places = places_of(tensors);
  for (const size_t i : order) {
    for (size_t done = 0; done < tensors[i].size();) {
      const size_t left = tensors[i].size() - done;
      const std::span<std::byte> room = queue.reserve(left, places[i] + done);
      ASSERT_FALSE(room.empty());
      const size_t end = places[i] + done + room.size();
      EXPECT_TRUE(room.size() == left || end % SnapshotQueue::kAlignment == 0) << end;
      std::memcpy(room.data(), tensors[i].data() + done, room.size());
      queue.push({i, done, room});
      done += room.size();
    }
  }
  queue.finish();
}

TEST(SnapshotQueueTest, BytesComeOutInOrderThroughMemoryThatIsMuchSmaller) {
  std::vector<std::vector<std::byte>> tensors;
  for (uint32_t i = 0; i < 60; ++i) tensors.push_back(random_bytes(1 + i * i * 37 % 4000, i));
  std::vector<size_t> in_order(tensors.size());
  std::iota(in_order.begin(), in_order.end(), size_t{0});
  std::vector<size_t> shuffled = in_order;
  std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937(1));
  const std::vector<uint64_t> places = places_of(tensors);
  for (const auto& [order, nbytes] :
       each(std::array{in_order, shuffled}, std::array{512U, 1024U, 4608U, 1U << 20})) {
    std::vector<std::byte> memory(nbytes);
    SnapshotQueue queue(memory);
    std::vector<std::vector<std::byte>> received(tensors.size());
    std::vector<size_t> received_order;
    std::thread copying([&] { copy_all(queue, tensors, order); });
    for (auto pieces = queue.take(); !pieces.empty(); pieces = queue.take()) {
      for (const Piece& piece : pieces) {
        std::vector<std::byte>& to = received[piece.tensor];
        if (to.empty()) received_order.push_back(piece.tensor);
        EXPECT_EQ(piece.offset, to.size());
        const auto in_memory = static_cast<uint64_t>(piece.bytes.data() - memory.data());
        const uint64_t in_file = places[piece.tensor] + piece.offset;
        EXPECT_EQ((in_file - in_memory) % SnapshotQueue::kAlignment, 0U);
        to.insert(to.end(), piece.bytes.begin(), piece.bytes.end());
      }
      queue.release();
    }
    copying.join();
    EXPECT_EQ(received, tensors) << nbytes;
    EXPECT_EQ(received_order, order) << nbytes;
  }
}

TEST(SnapshotQueueTest, WhatComesInTheFilesOrderLiesSideBySide) {
  std::vector<std::byte> memory(4096);
  SnapshotQueue queue(memory);
  const std::byte* next = memory.data();
  for (const size_t nbytes : {3U, 700U, 1U, 2000U}) {
    const auto room = queue.reserve(nbytes, 4096 + static_cast<uint64_t>(next - memory.data()));
    EXPECT_EQ(room.data(), next);
    EXPECT_EQ(room.size(), nbytes);
    queue.push({0, 0, room});
    next += nbytes;
  }
}

TEST(SnapshotQueueTest, ClosingWakesBothSides) {
  std::array<std::byte, 512> memory{};
  SnapshotQueue full(memory);
  full.push({0, 0, full.reserve(512, 0)});
  SnapshotQueue empty(memory);
  std::thread copying([&] { EXPECT_TRUE(full.reserve(1, 512).empty()); });
  std::thread writing([&] { EXPECT_TRUE(empty.take().empty()); });
  full.close();
  empty.close();
  copying.join();
  writing.join();
  EXPECT_TRUE(full.take().empty());
}

}  // namespace
}  // namespace zerorun::testing
