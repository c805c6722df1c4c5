#pragma once

#include "tests/common.h"
#include "zerorun/communicator.h"

namespace zerorun::testing {

// Passes everything on to another communicator. Tests derive from it to see or change a call.
class WrappedCommunicator : public Communicator {
 public:
  explicit WrappedCommunicator(Communicator& inner) : inner_(inner) {}
  explicit WrappedCommunicator(std::shared_ptr<Communicator> inner)
      : owned_(std::move(inner)), inner_(*owned_) {}

  int rank() const override { return inner_.rank(); }
  int world_size() const override { return inner_.world_size(); }
  std::string transport() const override { return inner_.transport(); }
  std::optional<Buffer> allocate(size_t nbytes, Sharing sharing) override {
    return inner_.allocate(nbytes, sharing);
  }
  Event all_reduce(TensorView in, TensorView out, ReduceOp op, Output output, Stream& stream,
                   std::string_view label) override {
    return inner_.all_reduce(in, out, op, output, stream, label);
  }
  Event reduce_scatter(TensorView in, TensorView out, Output output, Stream& stream,
                       std::string_view label) override {
    return inner_.reduce_scatter(in, out, output, stream, label);
  }
  Event all_gather(TensorView in, TensorView out, Sync sync, Stream& stream,
                   std::string_view label) override {
    return inner_.all_gather(in, out, sync, stream, label);
  }
  Event all_to_all(TensorView in, TensorView out, Stream& stream, std::string_view label) override {
    return inner_.all_to_all(in, out, stream, label);
  }
  Event redistribute(TensorView in, TensorView out, std::shared_ptr<const Cuts> cuts,
                     Stream& stream, std::string_view label) override {
    return inner_.redistribute(in, out, std::move(cuts), stream, label);
  }
  Event broadcast(TensorView inout, int root, Stream& stream, std::string_view label) override {
    return inner_.broadcast(inout, root, stream, label);
  }
  Event barrier(Stream& stream, std::string_view label) override {
    return inner_.barrier(stream, label);
  }
  Event coalesced(Stream& stream, const std::function<void()>& calls) override {
    return inner_.coalesced(stream, calls);
  }
  std::shared_ptr<Communicator> split(int color, int key, std::string_view name) override {
    return inner_.split(color, key, name);
  }
  bool reads_peers() const override { return inner_.reads_peers(); }
  void abort(std::string_view reason) noexcept override { inner_.abort(reason); }
  CommStats stats() const override { return inner_.stats(); }
  Subscription observe(CollectiveObserver observer) override {
    return inner_.observe(std::move(observer));
  }

 private:
  const std::shared_ptr<Communicator> owned_;
  Communicator& inner_;
};

// As NCCL's: no rank reads its peers' memory, so that gathers have a lane of their own.
class CollectiveGathers : public WrappedCommunicator {
 public:
  using WrappedCommunicator::WrappedCommunicator;

  Event all_gather(TensorView in, TensorView out, Sync /*sync*/, Stream& stream,
                   std::string_view label) override {
    return WrappedCommunicator::all_gather(in, out, Sync::collective, stream, label);
  }
  Communicator& second_lane(std::string_view name) override {
    if (!lane_) lane_ = make_lane(split(0, rank(), name));
    return *lane_;
  }
  bool reads_peers() const override { return false; }

 protected:
  virtual std::unique_ptr<Communicator> make_lane(std::shared_ptr<Communicator> inner) {
    return std::make_unique<CollectiveGathers>(std::move(inner));
  }

 private:
  std::unique_ptr<Communicator> lane_;
};

}  // namespace zerorun::testing
