#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "comm/collective_call.h"
#include "zerorun/communicator.h"

namespace zerorun::shm {

// What a rank is about to do: nothing yet but to meet its peers, a collective, or the allocation of
// shared memory.
enum class Step : uint8_t { join, collective, allocate };

// Where a tensor is within memory that the ranks allocated together.
struct Location {
  static constexpr int64_t kPrivate = -1;
  int64_t block = kPrivate;  // kPrivate: the tensor is in other memory
  uint64_t offset = 0;       // from the start of the rank's own part

  bool operator==(const Location&) const = default;
  bool shared() const { return block != kPrivate; }
};

// Describes the operation that a rank is about to perform. Ranks compare their announcements, so
// ranks that diverge get an error instead of waiting for each other.
struct Announcement {     // size: all that ranks compare, and where their tensors are
  uint64_t sequence = 0;  // number among the operations of these ranks
  uint64_t number = 0;    // among those of the whole job, for error messages; 0: the same
  int64_t numel = 0;
  uint64_t label_hash = 0;
  uint64_t cuts_hash = 0;
  int32_t root = 0;
  Step step = Step::join;
  Collective op = Collective::barrier;  // of a collective
  DType dtype = DType::fp32;
  DType out_dtype = DType::fp32;
  ReduceOp reduce = ReduceOp::sum;
  Output output = Output::overwrite;
  Sharing sharing = Sharing::per_rank;
  bool direct = false;    // peers read `in` in place; otherwise its rank stages it
  bool in_place = false;  // `out` overwrites `in`
  Location in;
  Location out;
  std::array<char, 64> label{};  // truncated, for error messages
};

// The announcement of `call`, without the label and the locations.
Announcement announcement_of(const CollectiveCall& call);

// Copies as much of `text` as fits, zero-terminated.
template <size_t kSize>
void copy_cut(std::string_view text, std::array<char, kSize>& out) {
  out[text.copy(out.data(), kSize - 1)] = '\0';
}

// Sets the label's hash and as much of its text as fits.
void set_label(Announcement& announcement, std::string_view label);

// True if both ranks announce the same operation. The locations of their tensors may differ.
bool same_operation(const Announcement& a, const Announcement& b);

// "all_reduce(sum) #12 'grad norm' of 2 fp32"
std::string describe(const Announcement& announcement);

}  // namespace zerorun::shm
