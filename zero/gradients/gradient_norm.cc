#include "zero/gradients/gradient_norm.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <thread>

#include "comm/agreement.h"
#include "core/check.h"
#include "core/wait_clock.h"
#include "device/staging.h"

namespace zerorun {

namespace {

// True if `count` numbers are the same, from their sum and the sum of their squares: only then is
// the mean of the squares the square of the mean.
bool all_equal(int count, int64_t sum, int64_t squares) {
  return static_cast<__int128>(count) * squares == static_cast<__int128>(sum) * sum;
}

}  // namespace

void synchronize_soon(const Event& event, std::chrono::microseconds patience) {
  const auto until = std::chrono::steady_clock::now() + patience;
  while (!event.ready() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  event.synchronize();
}

GradientNorm::GradientNorm(const EngineContext& context)
    : context_(context),
      has_host_(context.sharding.offloads_states()),
      votes_(vote_count() + ranks()) {
  const int64_t numel =
      int64_t{ExactSum::kWords} * (has_host_ ? 2 : 1) + static_cast<int64_t>(votes_.size());
  const size_t nbytes = static_cast<size_t>(numel) * sizeof(int64_t);
  Device& device = context.device;
  words_ = device.allocate(2 * nbytes, MemoryCategory::other);
  decision_ = device.allocate(2 * sizeof(float), MemoryCategory::other);
  // Copies from and to memory that is not pinned would wait for the GPU.
  found_ = allocate_staging(device, nbytes);
  if (has_host_) host_ = allocate_staging(device, ExactSum::kWords * sizeof(int64_t));
  const TensorView both = view_of(words_, DType::int64, 2 * numel);
  view_ = both.slice(0, numel);
  sum_ = both.slice(numel, numel);
  restart(context_.device.inline_stream());
}

void GradientNorm::add(const Bucket& bucket, TensorView reduced, int64_t begin, Stream& stream) {
  context_.device.sum_of_squares(stream, reduced, segments_of(bucket, reduced, begin),
                                 view_.slice(0, ExactSum::kWords));
}

void GradientNorm::add_host(const Bucket& bucket, HostPipeline& pipeline) {
  const TensorView reduced = bucket.grads.host_reduced;
  pipeline.stream().wait(bucket.grads.host_ready);
  pipeline.host().sum_of_squares(pipeline.stream(), reduced,
                                 segments_of(bucket, reduced, bucket.stored.host_from),
                                 view_of(host_, DType::int64, ExactSum::kWords));
  host_done_ = pipeline.stream().record();
}

std::vector<SquaresSegment> GradientNorm::segments_of(const Bucket& bucket, TensorView reduced,
                                                      int64_t begin) const {
  std::vector<SquaresSegment> segments;
  for (const Interval& part : bucket.owned_intervals(begin, reduced.numel)) {
    if (!context_.sharding.spec(part.parameter).counted) continue;
    segments.push_back({.begin = part.offset - bucket.stored.begin - begin, .numel = part.numel});
  }
  return segments;
}

void GradientNorm::restart(Stream& stream) {
  host_done_.synchronize();
  clear_host();
  context_.device.fill(stream, view_, 0.0F);
}

void GradientNorm::start(Stream& stream, const Votes& votes, const StepRule& rule) {
  Device& device = context_.device;
  const int64_t order = votes.gather_order;
  const size_t own = own_votes();
  votes_.assign(votes_.size(), 0);
  votes_[0] = votes.any ? 1 : 0;
  votes_[1] = votes.late ? 1 : 0;
  votes_[own] = votes.new_order ? 1 : 0;
  votes_[own + 1] = order;
  votes_[own + 2] = order * order;
  votes_[vote_count() + static_cast<size_t>(context_.groups.job().rank())] = votes.shares;
  const auto tail = static_cast<int64_t>(votes_.size());
  device.upload(stream, votes_.data(), view_.slice(view_.numel - tail, tail));
  if (has_host_) {
    stream.wait(host_done_);
    device.upload(stream, host_.data(), view_.slice(ExactSum::kWords, ExactSum::kWords));
  }
  device.fill(stream, sum_, 0.0F);  // no votes: what is aborted decides for no step
  context_.groups.job().all_reduce(view_, sum_, ReduceOp::sum, Output::overwrite, stream,
                                   "gradient norm");
  const TensorView all_votes = sum_.slice(sum_.numel - tail, tail);
  device.decide(stream,
                {.words = sum_.slice(0, sum_.numel - tail),
                 .votes = all_votes.slice(0, kCommonVotes),
                 .same = all_votes.slice(static_cast<int64_t>(own) + 1, 2),
                 .ranks = context_.sharding.place.world_size},
                rule, decision());
  device.download(stream, sum_, found_.data());
  found_all_ = stream.record();
  device.fill(stream, view_, 0.0F);
}

void GradientNorm::clear_host() {
  const std::span<int64_t> words =
      view_of(host_, DType::int64, has_host_ ? ExactSum::kWords : 0).span<int64_t>();
  std::fill(words.begin(), words.end(), 0);
}

// A GPU that has done a short step idles until the host goes on. Behind a long one's norm it has
// the update to do, in which a thread can wake up. Cores of CPU ranks have work for the norm
// itself.
GradientNorm::Result GradientNorm::read() {
  constexpr std::chrono::milliseconds kPatience{2};
  if (context_.device.is_host()) {
    found_all_.synchronize();
  } else {
    const PeerWait wait;  // and for the GPU, which all ranks do
    synchronize_soon(found_all_, kPatience);
  }
  clear_host();  // not before: it may be read as late as that
  const auto words = view_of(found_, DType::int64, view_.numel).span<const int64_t>();
  ExactSum sum = ExactSum::from_words(words.first(ExactSum::kWords));
  if (has_host_) {
    sum.merge(ExactSum::from_words(words.subspan(ExactSum::kWords, ExactSum::kWords)));
  }
  const std::span<const int64_t> total = words.last(votes_.size());
  const size_t own = own_votes();
  return {
      .norm = std::sqrt(sum.value()),
      .finite = sum.non_finite_terms() == 0,
      .any = total[0] > 0,
      .late = total[1] > 0,
      .new_order = total[own] > 0,
      .same_gathers = all_equal(context_.sharding.place.world_size, total[own + 1], total[own + 2]),
      .shares = total.last(ranks())};
}

GradientInspector::GradientInspector(const EngineContext& context)
    : context_(context),
      words_(context.device.allocate(ExactSum::kWords * sizeof(int64_t), MemoryCategory::other)) {}

void GradientInspector::look_at(const Bucket& bucket, TensorView gradient) {
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
  constexpr std::string_view kLabel = "non-finite gradient";
  Agreement agreement(job, stream);
  const int64_t ranks = job.world_size();
  const int64_t own = first_ ? first_->parameter * ranks + job.rank() : kNobody;
  const int64_t lowest = agreement.reduce(own, ReduceOp::min, kLabel);
  // Bits of doubles that are not negative have the doubles' order.
  std::array<int64_t, 2> details = {0, 0};
  std::array<int64_t, kMaxName> letters{};  // other ranks may have another part of the model
  if (first_ && own == lowest) {
    details = {first_->nan ? 1 : 0, std::bit_cast<int64_t>(first_->largest_finite)};
    const std::string& name = context_.sharding.spec(first_->parameter).name;
    std::copy_n(name.begin(), std::min(name.size(), kMaxName), letters.begin());
  }
  agreement.reduce(details, ReduceOp::max, kLabel);
  agreement.reduce(letters, ReduceOp::sum, kLabel);
  first_.reset();
  if (lowest == kNobody) {
    return fmt::format("the gradient of each rank is finite, but not their sum in {}",
                       name_of(context_.sharding.precision.accum_dtype));
  }
  std::string name;
  for (const int64_t letter : letters) {
    if (letter != 0) name.push_back(static_cast<char>(letter));
  }
  return fmt::format("the gradient of {} has {} on rank {} (largest finite magnitude {:.3g})", name,
                     details[0] != 0 ? "nan" : "inf", lowest % ranks,
                     std::bit_cast<double>(details[1]));
}

}  // namespace zerorun
