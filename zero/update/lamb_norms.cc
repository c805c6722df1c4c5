#include "zero/update/lamb_norms.h"

#include <cmath>

#include "zerorun/exact_sum.h"

namespace zerorun {

LambNorms::LambNorms(const EngineContext& context, HostPipeline* pipeline)
    : context_(context),
      pipeline_(pipeline),
      parameters_(static_cast<int64_t>(context.specs.size())),
      words_(2 * parameters_ * ExactSum::kWords),
      host_(static_cast<size_t>(pipeline == nullptr ? words_ : 2 * words_)) {
  const auto numel = static_cast<int64_t>(host_.size());
  buffer_ =
      context.device.allocate(static_cast<size_t>(numel) * sizeof(int64_t), MemoryCategory::other);
  sums_ = view_of(buffer_, DType::int64, numel);
  context.device.fill(context.device.inline_stream(), sums_, 0.0F);
}

void LambNorms::add(const ActiveChunk& active, TensorView directions) {
  const auto& [bucket, chunk, device, stream, states] = active;
  std::vector<SquaresSegment> segments;
  for (const Interval& part : bucket.owned_intervals(chunk.begin, chunk.numel())) {
    segments.push_back(
        {part.offset - bucket.stored.begin - chunk.begin, part.numel, part.parameter});
  }
  const TensorView sums = chunk.on_host ? view_of(std::span(host_)) : sums_;
  device.sum_of_squares(stream, states[0], segments, sums.slice(0, words_ / 2));
  device.sum_of_squares(stream, directions, segments, sums.slice(words_ / 2, words_ / 2));
}

void LambNorms::finish(Stream& comm_stream) {
  Device& device = context_.device;
  comm_stream.wait(device.inline_stream().record());
  if (pipeline_ != nullptr) {
    pipeline_->synchronize();
    device.upload(comm_stream, host_.data(), sums_.slice(words_, words_));
  }
  context_.comm.all_reduce(sums_, sums_, ReduceOp::sum, Output::overwrite, comm_stream,
                           "Lamb's norms");
  device.download(comm_stream, sums_, host_.data());
  comm_stream.synchronize();
}

double LambNorms::norm(int64_t sum) const {
  const auto words = [&](int64_t at) {
    return ExactSum::from_words(
        std::span(host_).subspan(static_cast<size_t>(at), ExactSum::kWords));
  };
  ExactSum total = words(sum * ExactSum::kWords);
  if (pipeline_ != nullptr) total.merge(words(words_ + sum * ExactSum::kWords));
  return std::sqrt(total.value());
}

}  // namespace zerorun
