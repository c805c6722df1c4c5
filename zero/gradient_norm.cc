#include "zero/gradient_norm.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace zerorun {

GradientNorm::GradientNorm(const EngineContext& context)
    : context_(context), has_host_(context.offloads_states()) {
  const int64_t numel = int64_t{ExactSum::kWords} * (has_host_ ? 2 : 1);
  words_ =
      context.device.allocate(static_cast<size_t>(numel) * sizeof(int64_t), MemoryCategory::other);
  view_ = view_of(words_, DType::int64, numel);
  restart(context_.device.inline_stream());
}

template <typename Add>
void GradientNorm::for_each_part(const Bucket& bucket, TensorView reduced, int64_t begin,
                                 const Add& add) {
  // At stage 0 each rank holds the whole reduced gradient, and adds its share of it only.
  for (const Interval& interval : bucket.layout.shard_intervals(context_.rank)) {
    const int64_t at = interval.offset - bucket.held_from;
    const int64_t first = std::max(at, begin);
    const int64_t last = std::min(at + interval.numel, begin + reduced.numel);
    if (first < last) add(reduced.slice(first - begin, last - first));
  }
}

void GradientNorm::add(const Bucket& bucket, TensorView reduced, int64_t begin, Stream& stream) {
  for_each_part(bucket, reduced, begin, [&](TensorView part) {
    context_.device.sum_of_squares(stream, part, view_.slice(0, ExactSum::kWords));
  });
}

void GradientNorm::add_host(const Bucket& bucket, HostLane& lane) {
  lane.stream().wait(bucket.host_ready);
  for_each_part(bucket, bucket.host_reduced, bucket.host_from, [&](TensorView part) {
    lane.host().sum_of_squares(lane.stream(), part, view_of(std::span<int64_t>(host_)));
  });
  host_done_ = lane.stream().record();
}

void GradientNorm::restart(Stream& stream) {
  host_done_.synchronize();
  host_ = {};
  context_.device.fill(stream, view_, 0.0F);
}

GradientNorm::Result GradientNorm::finish(Stream& stream) {
  std::vector<int64_t> words(static_cast<size_t>(view_.numel));
  if (has_host_) {
    host_done_.synchronize();  // not the stream: memory that is not pinned may be read at once
    context_.device.upload(stream, host_.data(), view_.slice(ExactSum::kWords, ExactSum::kWords));
  }
  context_.comm.all_reduce(view_, view_, ReduceOp::sum, Output::overwrite, stream, "gradient norm");
  context_.device.download(stream, view_, words.data());
  stream.synchronize();
  restart(stream);
  ExactSum sum = ExactSum::from_words(std::span(words).first(ExactSum::kWords));
  if (has_host_) sum.merge(ExactSum::from_words(std::span(words).last(ExactSum::kWords)));
  return {.norm = std::sqrt(sum.value()), .finite = sum.non_finite_terms() == 0};
}

}  // namespace zerorun
