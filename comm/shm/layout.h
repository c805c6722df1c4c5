#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "comm/shm/announcement.h"
#include "os/process_identity.h"

// The layout of the control segment that all ranks of a shared-memory communicator map: a header,
// then one slot per rank. A slot is written by its rank only, except `sleepers`, which its peers
// count.
namespace zerorun::shm {

// A value that one rank writes while others may read it. A reader may see a mix of two values; the
// race is never undefined behaviour.
template <typename T>
class SharedValue {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(uint64_t) == 0);

 public:
  void store(const T& value) {
    std::array<uint64_t, kWords> words;
    std::memcpy(words.data(), &value, sizeof(T));
    for (size_t i = 0; i < kWords; ++i) words_[i].store(words[i], std::memory_order_relaxed);
  }
  T load() const {
    std::array<uint64_t, kWords> words;
    for (size_t i = 0; i < kWords; ++i) words[i] = words_[i].load(std::memory_order_relaxed);
    T value;
    std::memcpy(static_cast<void*>(&value), words.data(), sizeof(T));
    return value;
  }

 private:
  static constexpr size_t kWords = sizeof(T) / sizeof(uint64_t);
  std::array<std::atomic<uint64_t>, kWords> words_;
};

enum class Membership : uint32_t { absent, joined, left };

// A wait for another rank, recorded if it lasts longer than waits of ranks in step normally do.
struct Wait {
  int64_t since_ns = 0;  // of std::chrono::steady_clock, which a host's processes share; 0: no wait
  int64_t rank = 0;      // its number in the job
};

// Bytes of a stage. Smaller inputs are staged together with the announcement; larger ones in
// chunks.
inline constexpr size_t kStageBytes = size_t{256} << 10;

// Ranks advance in steps. In each step a rank writes the data for its peers into the half of its
// stages that belongs to the step, increments `step`, and waits until all peers have incremented
// theirs. It writes to the same half again two steps later. By then every peer has completed the
// step in between and so has finished reading.
struct RankSlot {
  alignas(64) std::atomic<uint32_t> step;  // also the futex that peers sleep on
  std::atomic<uint32_t> sleepers;          // peers that sleep on `step`
  alignas(64) std::atomic<uint32_t> claimed;
  std::atomic<Membership> membership;
  ProcessIdentity process;  // valid once joined
  std::array<char, 64> host;
  std::array<SharedValue<Announcement>, 2> announcements;
  SharedValue<Wait> wait;
};
using RankStages = std::array<std::array<std::byte, kStageBytes>, 2>;

// The first failure of any rank, which becomes the error of all.
struct Failure {
  enum State : uint32_t { none, being_written, written };
  std::atomic<uint32_t> state;
  std::array<char, 2040> text;
};

struct ControlHeader {
  std::atomic<uint32_t> stall_reported;  // set by the rank that reports
  Failure failure;
};

// The segment has the header, the slots of all ranks, and their stages. Slots are adjacent because
// every rank reads all of them, so they should cover few pages.
constexpr size_t kPage = 4096;
constexpr size_t kSlotsOffset = kPage;
static_assert(sizeof(ControlHeader) <= kSlotsOffset && alignof(RankSlot) <= kSlotsOffset);
constexpr size_t slot_offset(int rank) {
  return kSlotsOffset + static_cast<size_t>(rank) * sizeof(RankSlot);
}
constexpr size_t stages_offset(int world_size, int rank) {
  const size_t pages = (slot_offset(world_size) + kPage - 1) / kPage;
  return pages * kPage + static_cast<size_t>(rank) * sizeof(RankStages);
}
constexpr size_t control_bytes(int world_size) { return stages_offset(world_size, world_size); }
static_assert(std::atomic<uint32_t>::is_always_lock_free &&
              std::atomic<uint64_t>::is_always_lock_free);

}  // namespace zerorun::shm
