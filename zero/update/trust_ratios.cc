#include "zero/update/trust_ratios.h"

#include <vector>

#include "device/staging.h"
#include "zerorun/exact_sum.h"

namespace zerorun {

TrustRatios::TrustRatios(const EngineContext& context, HostPipeline* pipeline,
                         const Optimizer& rule)
    : context_(context),
      pipeline_(pipeline),
      limits_(rule.trust_ratio_limits()),
      words_(2 * static_cast<int64_t>(context.sharding.specs.size()) * ExactSum::kWords) {
  Device& device = context.device;
  const auto parameters = static_cast<int64_t>(context.sharding.specs.size());
  const auto nbytes = [&](int64_t words) {
    return static_cast<size_t>(words) * sizeof(int64_t) +
           static_cast<size_t>(parameters) * sizeof(float);
  };
  const auto ratios_behind = [&](const Buffer& memory, int64_t words) {
    return TensorView{memory.data() + static_cast<size_t>(words) * sizeof(int64_t), parameters,
                      DType::fp32};
  };
  const int64_t words = pipeline == nullptr ? words_ : 2 * words_;
  memory_ = device.allocate(nbytes(words), MemoryCategory::other);
  sums_ = view_of(memory_, DType::int64, words);
  ratios_ = ratios_behind(memory_, words);
  if (pipeline == nullptr) return;
  host_memory_ = allocate_staging(device, nbytes(words_));
  host_sums_ = view_of(host_memory_, DType::int64, words_);
  host_ratios_ = ratios_behind(host_memory_, words_);
}

void TrustRatios::begin() {
  context_.device.fill(context_.device.inline_stream(), sums_, 0.0F);
  if (pipeline_ == nullptr) return;
  pipeline_->stream().wait(sent_);
  pipeline_->host().fill(pipeline_->stream(), host_sums_, 0.0F);
}

void TrustRatios::add(const ActiveChunk& active, TensorView directions) {
  const auto& [bucket, chunk, device, stream, states] = active;
  std::vector<SquaresSegment> segments;
  for (const Interval& part : bucket.owned_intervals(chunk.begin, chunk.numel())) {
    const bool replica = context_.sharding.spec(part.parameter).replica;
    if (replica && context_.groups.others.tensor != nullptr) continue;  // the first rank adds it
    segments.push_back(
        {part.offset - bucket.stored.begin - chunk.begin, part.numel, part.parameter});
  }
  const TensorView sums = chunk.on_host ? host_sums_ : sums_;
  device.sum_of_squares(stream, states[0], segments, sums.slice(0, words_ / 2));
  device.sum_of_squares(stream, directions, segments, sums.slice(words_ / 2, words_ / 2));
}

void TrustRatios::finish(Stream& comm_stream) {
  Device& device = context_.device;
  comm_stream.wait(device.inline_stream().record());
  if (pipeline_ != nullptr) {
    // After all updates of the last step, too, which read `host_ratios_`.
    comm_stream.wait(pipeline_->stream().record());
    device.upload(comm_stream, host_sums_.data, sums_.slice(words_, words_));
    sent_ = comm_stream.record();
  }
  context_.groups.comm.all_reduce(sums_, sums_, ReduceOp::sum, Output::overwrite, comm_stream,
                                  "Lamb's norms");
  if (Communicator* const tensor = context_.groups.others.tensor) {
    tensor->all_reduce(sums_, sums_, ReduceOp::sum, Output::overwrite, comm_stream,
                       "Lamb's norms of divided tensors");
  }
  device.trust_ratios(comm_stream, sums_, limits_, ratios_);
  if (pipeline_ != nullptr) device.download(comm_stream, ratios_, host_ratios_.data);
  const Event ready = comm_stream.record();
  device.inline_stream().wait(ready);
  if (pipeline_ != nullptr) pipeline_->stream().wait(ready);
}

}  // namespace zerorun
