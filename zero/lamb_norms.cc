#include "zero/lamb_norms.h"

#include <cmath>

#include "zerorun/exact_sum.h"

namespace zerorun {

namespace {
// which: 0 of the parameter, 1 of the direction.
int64_t place_of(ParameterId id, int64_t which) {
  return (int64_t{id} * 2 + which) * ExactSum::kWords;
}
}  // namespace

LambNorms::LambNorms(const EngineContext& context, HostLane* lane)
    : context_(context),
      lane_(lane),
      words_(static_cast<int64_t>(context.specs.size()) * 2 * ExactSum::kWords),
      host_(static_cast<size_t>(lane == nullptr ? words_ : 2 * words_)) {
  const auto numel = static_cast<int64_t>(host_.size());
  buffer_ =
      context.device.allocate(static_cast<size_t>(numel) * sizeof(int64_t), MemoryCategory::other);
  sums_ = view_of(buffer_, DType::int64, numel);
  context.device.fill(context.device.inline_stream(), sums_, 0.0F);
}

void LambNorms::add(Device& device, Stream& stream, ParameterId id, TensorView parameter,
                    TensorView direction) {
  const bool on_host = lane_ != nullptr && &stream == &lane_->stream();
  const TensorView sums = on_host ? view_of(std::span(host_)).slice(0, words_) : sums_;
  device.sum_of_squares(stream, parameter, sums.slice(place_of(id, 0), ExactSum::kWords));
  device.sum_of_squares(stream, direction, sums.slice(place_of(id, 1), ExactSum::kWords));
}

void LambNorms::finish(Stream& comm_stream) {
  Device& device = context_.device;
  comm_stream.wait(device.inline_stream().record());
  if (lane_ != nullptr) {
    lane_->synchronize();
    device.upload(comm_stream, host_.data(), sums_.slice(words_, words_));
  }
  context_.comm.all_reduce(sums_, sums_, ReduceOp::sum, Output::overwrite, comm_stream,
                           "Lamb's norms");
  device.download(comm_stream, sums_, host_.data());
  comm_stream.synchronize();
}

double LambNorms::norm(ParameterId id, int64_t which) const {
  const auto at = static_cast<size_t>(place_of(id, which));
  const std::span all(host_);
  ExactSum sum = ExactSum::from_words(all.subspan(at, ExactSum::kWords));
  if (lane_ != nullptr) {
    sum.merge(
        ExactSum::from_words(all.subspan(at + static_cast<size_t>(words_), ExactSum::kWords)));
  }
  return std::sqrt(sum.value());
}

}  // namespace zerorun
