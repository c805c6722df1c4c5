#include "train/run/rank_sums.h"

#include <algorithm>

#include "core/check.h"

namespace zerorun::train {

void RankSums::start(std::span<const float> values, std::string_view label) {
  ZR_CHECK(values.size() <= kMaxValues, "{} values are added over the ranks", values.size());
  there_.synchronize();  // the memory is reused
  const auto numel = std::ssize(values);
  const TensorView host = view_of(on_host_, DType::fp32, numel);
  const TensorView view = view_of(on_device_, DType::fp32, numel);
  std::copy(values.begin(), values.end(), host.as<float>());
  Stream& stream = device_.inline_stream();
  device_.upload(stream, host.data, view);
  stream.wait(comm_.all_reduce(view, view, ReduceOp::sum, Output::overwrite, stream, label));
  device_.download(stream, view, host.data);
  there_ = stream.record();
}

void RankSums::finish(std::span<float> sums) {
  there_.synchronize();
  const TensorView host = view_of(on_host_, DType::fp32, std::ssize(sums));
  std::copy_n(host.as<const float>(), sums.size(), sums.begin());
}

}  // namespace zerorun::train
