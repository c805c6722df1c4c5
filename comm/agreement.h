#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "zerorun/communicator.h"
#include "zerorun/device.h"

namespace zerorun {

// Base of the errors that Agreement::run throws. A handler that catches it knows that every rank
// has thrown the same error, so that ranks need not agree about it again.
struct OnEveryRank {
  virtual ~OnEveryRank() = default;
};

// Keeps ranks together during set-up, saves, loads and exports. If a step fails on one rank, every
// rank throws the same error, so none waits in a collective that another has left. Also shares
// small integers between ranks. All methods are collective.
class Agreement {
 public:
  // The collectives run on `stream`. Both arguments must outlive this object.
  Agreement(Communicator& comm, Stream& stream) : comm_(comm), stream_(stream) {}

  int rank() const { return comm_.rank(); }
  int world_size() const { return comm_.world_size(); }

  // Runs `step` on this rank and returns when all ranks have run theirs. If a step threw, all ranks
  // throw the error of the lowest rank that failed, with its type and text, as an OnEveryRank.
  void run(std::string_view label, const std::function<void()>& step);

  // Reduces in place. All ranks pass the same number of values.
  void reduce(std::span<int64_t> values, ReduceOp op, std::string_view label);
  int64_t reduce(int64_t value, ReduceOp op, std::string_view label = "ranks agree") {
    reduce({&value, 1}, op, label);
    return value;
  }
  // True if all ranks pass the same value.
  bool is_same(int64_t value);
  // Returns rank 0's value on every rank.
  int64_t broadcast(int64_t value);
  // Concatenates the words of all ranks in rank order. All ranks pass the same number of words.
  std::vector<int64_t> gather(std::span<const int64_t> words,
                              std::string_view label = "ranks agree");

 private:
  Communicator& comm_;
  Stream& stream_;
};

}  // namespace zerorun
