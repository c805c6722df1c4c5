#include "checkpoint/saving/save.h"
#include "tests/common.h"

namespace zerorun {
namespace {

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
  for (const auto& order : {in_order, shuffled}) {
    for (const size_t nbytes : {512U, 1024U, 4608U, 1U << 20}) {
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
}  // namespace zerorun
