#include "zero/gradients/gradient_inspector.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "core/check.h"
#include "zerorun/exact_sum.h"

namespace zerorun {

GradientInspector::GradientInspector(const EngineContext& context)
    : context_(context),
      words_(context.device.allocate(ExactSum::kWords * sizeof(int64_t), MemoryCategory::other)) {}

void GradientInspector::look_at(const Bucket& bucket, TensorView gradient) {
  if (!watching_) return;
  for (const Placement& placement : bucket.layout.placements) {
    if (first_ && first_->parameter <= placement.parameter) continue;
    const TensorView part = gradient.slice(placement.offset, placement.numel);
    if (!is_finite(part)) first_ = examine(placement.parameter, part);
  }
}

bool GradientInspector::is_finite(TensorView gradient) {
  Stream& stream = context_.device.inline_stream();
  const TensorView view = view_of(words_, DType::int64, ExactSum::kWords);
  std::array<int64_t, ExactSum::kWords> words{};
  context_.device.fill(stream, view, 0.0F);
  const SquaresSegment all{.numel = gradient.numel};
  context_.device.sum_of_squares(stream, gradient, {&all, 1}, view);
  context_.device.download(stream, view, words.data());
  stream.synchronize();
  return ExactSum::from_words(words).non_finite_terms() == 0;
}

GradientInspector::Finding GradientInspector::examine(ParameterId parameter, TensorView gradient) {
  Stream& stream = context_.device.inline_stream();
  const Buffer wide = context_.device.allocate(static_cast<size_t>(gradient.numel) * sizeof(float),
                                               MemoryCategory::other);
  const TensorView view = view_of(wide, DType::fp32, gradient.numel);
  std::vector<float> values(static_cast<size_t>(gradient.numel));
  context_.device.cast(stream, gradient, view);
  context_.device.download(stream, view, values.data());
  stream.synchronize();
  Finding finding{.parameter = parameter};
  for (const float value : values) {
    finding.nan = finding.nan || std::isnan(value);
    if (std::isfinite(value)) {
      finding.largest_finite = std::max(finding.largest_finite, std::abs(double{value}));
    }
  }
  return finding;
}

std::string GradientInspector::report(Stream& stream) {
  constexpr size_t kMaxName = 200;
  constexpr int64_t kNobody = std::numeric_limits<int64_t>::max();
  Communicator& job = context_.groups.job();
  const auto agree = [&](std::span<int64_t> values, ReduceOp op) {
    const TensorView view = view_of(values);
    job.all_reduce(view, view, op, Output::overwrite, stream, "non-finite gradient").synchronize();
  };
  const int64_t ranks = job.world_size();
  const int64_t own = first_ ? first_->parameter * ranks + job.rank() : kNobody;
  std::array<int64_t, 1> lowest = {own};
  agree(lowest, ReduceOp::min);
  // Bits of doubles that are not negative have the doubles' order.
  std::array<int64_t, 2> details = {0, 0};
  std::array<int64_t, kMaxName> letters{};  // other ranks may have another part of the model
  if (first_ && own == lowest[0]) {
    details = {first_->nan ? 1 : 0, std::bit_cast<int64_t>(first_->largest_finite)};
    const std::string& name = context_.sharding.specs[static_cast<size_t>(first_->parameter)].name;
    std::copy_n(name.begin(), std::min(name.size(), kMaxName), letters.begin());
  }
  agree(details, ReduceOp::max);
  agree(letters, ReduceOp::max);
  first_.reset();
  if (lowest[0] == kNobody) {
    return fmt::format("the gradient of each rank is finite, but not their sum in {}",
                       name_of(context_.sharding.precision.accum_dtype));
  }
  std::string name;
  for (const int64_t letter : letters) {
    if (letter != 0) name.push_back(static_cast<char>(letter));
  }
  return fmt::format("the gradient of {} has {} on rank {} (largest finite magnitude {:.3g})", name,
                     details[0] != 0 ? "nan" : "inf", lowest[0] % ranks,
                     std::bit_cast<double>(details[1]));
}

}  // namespace zerorun
