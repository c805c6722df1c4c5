#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "zerorun/communicator.h"
#include "zerorun/device.h"

namespace zerorun {

// Marks the errors that Agreement::run throws: every rank has the same.
struct OnEveryRank {
  virtual ~OnEveryRank() = default;
};

// Runs the steps of one set-up, save, load or export on all ranks, so that a step that fails on one
// rank is the same error on every rank, and shares small numbers among them. All methods are
// collective.
class Agreement {
 public:
  // `stream` carries the collectives; both must outlive this object.
  Agreement(Communicator& comm, Stream& stream) : comm_(comm), stream_(stream) {}

  int rank() const { return comm_.rank(); }
  int world_size() const { return comm_.world_size(); }

  // Runs `step` on this rank and returns when every rank has run its own. If it threw anywhere, the
  // error of the lowest such rank is thrown on all of them, with its type and text, as OnEveryRank.
  void run(std::string_view label, const std::function<void()>& step);

  int64_t reduce(int64_t value, ReduceOp op);
  // Rank 0's value.
  int64_t broadcast(int64_t value);
  // The words of all ranks, in rank order; all give equally many.
  std::vector<int64_t> gather(std::span<const int64_t> words);

 private:
  Communicator& comm_;
  Stream& stream_;
};

}  // namespace zerorun
