#include "zero/gradient_norm.h"

#include <array>
#include <cmath>

namespace zerorun {

GradientNorm::GradientNorm(const EngineContext& context)
    : context_(context),
      words_(context.device.allocate(ExactSum::kWords * sizeof(int64_t), MemoryCategory::other)),
      view_(view_of(words_, DType::int64, ExactSum::kWords)) {
  restart(context_.device.inline_stream());
}

void GradientNorm::add(const Bucket& bucket, Stream& stream) {
  const int rank = context_.comm.rank();
  // At stage 0 each rank holds the whole reduced gradient, and adds its share of it only.
  const int64_t held_from = context_.policy.shard_state ? rank * bucket.layout.shard_numel : 0;
  for (const Interval& interval : bucket.layout.shard_intervals(rank)) {
    context_.device.sum_of_squares(
        stream, bucket.reduced.slice(interval.offset - held_from, interval.numel), view_);
  }
}

void GradientNorm::restart(Stream& stream) { context_.device.fill(stream, view_, 0.0F); }

GradientNorm::Result GradientNorm::finish(Stream& stream) {
  context_.comm.all_reduce(view_, view_, ReduceOp::sum, Output::overwrite, stream, "gradient norm");
  std::array<int64_t, ExactSum::kWords> words{};
  context_.device.download(stream, view_, words.data());
  restart(stream);
  stream.synchronize();
  const ExactSum sum = ExactSum::from_words(words);
  return {.norm = std::sqrt(sum.value()), .finite = sum.non_finite_terms() == 0};
}

}  // namespace zerorun
