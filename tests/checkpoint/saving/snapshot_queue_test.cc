#include "checkpoint/saving/snapshot_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

namespace zerorun {
namespace {

using Piece = SnapshotQueue::Piece;

std::vector<std::byte> random_bytes(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Copies tensors into the queue, as a snapshot does.
void copy_all(SnapshotQueue& queue, const std::vector<std::vector<std::byte>>& tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (size_t done = 0; done < tensors[i].size();) {
      const std::span<std::byte> room = queue.reserve(tensors[i].size() - done);
      ASSERT_FALSE(room.empty());
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
  for (const size_t nbytes : {64U, 128U, 576U, 1U << 20}) {
    std::vector<std::byte> memory(nbytes);
    SnapshotQueue queue(memory);
    std::vector<std::vector<std::byte>> received(tensors.size());
    std::thread copying([&] { copy_all(queue, tensors); });
    size_t last = 0;
    while (const std::optional<Piece> piece = queue.front()) {
      EXPECT_GE(piece->tensor, last);
      last = piece->tensor;
      std::vector<std::byte>& to = received[piece->tensor];
      EXPECT_EQ(piece->offset, to.size());
      to.insert(to.end(), piece->bytes.begin(), piece->bytes.end());
      queue.pop();
    }
    copying.join();
    EXPECT_EQ(received, tensors) << nbytes;
  }
}

TEST(SnapshotQueueTest, PiecesThatAreNotTakenNeverOverlap) {
  std::vector<std::byte> memory(640);
  SnapshotQueue queue(memory);
  std::vector<bool> taken(memory.size(), false);
  for (const size_t wanted : {1U, 63U, 64U, 65U, 130U, 1000U}) {
    const std::span<std::byte> room = queue.reserve(wanted);
    ASSERT_EQ(
        room.size(),
        std::min<size_t>(wanted, static_cast<size_t>(memory.data() + memory.size() - room.data())));
    for (size_t i = 0; i < room.size(); ++i) {
      const auto place = static_cast<size_t>(room.data() - memory.data()) + i;
      EXPECT_FALSE(taken[place]);
      taken[place] = true;
    }
    queue.push({0, 0, room});
  }
}

TEST(SnapshotQueueTest, ClosingWakesBothSides) {
  std::array<std::byte, 64> memory{};
  SnapshotQueue full(memory);
  full.push({0, 0, full.reserve(64)});
  std::thread copying([&] { EXPECT_TRUE(full.reserve(1).empty()); });
  full.close();
  copying.join();
  EXPECT_FALSE(full.front().has_value());

  SnapshotQueue empty(memory);
  std::thread writing([&] { EXPECT_FALSE(empty.front().has_value()); });
  empty.close();
  writing.join();
}

}  // namespace
}  // namespace zerorun
