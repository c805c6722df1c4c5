#include "train/run/rank_sums.h"

#include <algorithm>

#include "core/check.h"

namespace zerorun::train {

TensorView RankSums::put(std::span<const float> values) {
  ZR_CHECK(values.size() <= kMaxValues, "{} values are added over the ranks", values.size());
  values_ = view_of(on_device_, DType::fp32, std::ssize(values));
  const TensorView host = view_of(on_host_, DType::fp32, values_.numel);
  std::copy(values.begin(), values.end(), host.as<float>());
  device_.upload(device_.inline_stream(), host.data, values_);
  return values_;
}

void RankSums::start(std::string_view label) {
  Stream& stream = device_.inline_stream();
  stream.wait(comm_.all_reduce(values_, values_, ReduceOp::sum, Output::overwrite, stream, label));
  device_.download(stream, values_, on_host_.data());
  there_ = stream.record();
}

void RankSums::finish(std::span<float> sums) {
  if (!there_.ready()) there_.synchronize();  // which would wait for a GPU that is done, too
  std::copy_n(view_of(on_host_, DType::fp32, std::ssize(sums)).as<const float>(), sums.size(),
              sums.begin());
}

}  // namespace zerorun::train
