// The steps of ShardedOptimizer that have to see whole parameters between two passes.
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/check.h"
#include "zero/sharded_optimizer.h"
#include "zerorun/exact_sum.h"

namespace zerorun {

void ShardedOptimizer::allocate_direction() {
  int64_t numel = 0;
  int64_t work = 0;
  for (const Bucket& bucket : buckets_) {
    if (!bucket.plan.trainable) continue;
    const Optimizer::Passes passes = rule_of(bucket).passes();
    if (passes == Optimizer::Passes::lamb) numel = std::max(numel, held_numel(bucket));
    if (passes != Optimizer::Passes::muon) continue;
    numel = std::max(numel, bucket.layout.padded_numel());
    for (const SizedParameter& parameter : bucket.plan.parameters) {
      const auto& shape = context_.specs[static_cast<size_t>(parameter.parameter)].shape;
      work = std::max(work, orthogonalize_work(shape[0], shape[1]));
    }
  }
  if (numel == 0) return;
  const size_t nbytes = static_cast<size_t>(numel) * sizeof(float);
  std::optional<Buffer> direction = context_.comm.allocate(nbytes, Sharing::per_rank);
  ZR_CHECK(direction, "transport {} gives no per-rank memory", context_.comm.transport());
  ledger_ = context_.device.account(nbytes, MemoryCategory::buckets);
  direction_ = std::move(*direction);
  work_ =
      context_.device.allocate(static_cast<size_t>(work) * sizeof(float), MemoryCategory::buckets);
}

TensorView ShardedOptimizer::find_direction(const Bucket& bucket, const Step& step,
                                            std::span<const TensorView> views, int64_t at) {
  const TensorView direction =
      view_of(direction_, DType::fp32, at + held_numel(bucket)).slice(at, held_numel(bucket));
  for (const Run& run : runs(bucket)) {
    UpdateTensors tensors = tensors_of(bucket, views, run);
    tensors.param = direction.slice(run.begin, run.end - run.begin);
    context_.device.update(context_.device.inline_stream(),
                           rule_of(bucket).scalars(step.count, step.grad_scale, step.of(run)),
                           tensors);
  }
  return direction;
}

// Lamb scales each parameter's step by the ratio of two norms. Their sums of squares are exact, so
// they do not depend on who adds what; one collective brings those of all parameters.
void ShardedOptimizer::lamb_step(const Step& step, Stream& comm_stream,
                                 const std::function<void(const Bucket&)>& publish) {
  Device& device = context_.device;
  Stream& stream = device.inline_stream();
  const int64_t words = static_cast<int64_t>(context_.specs.size()) * 2 * ExactSum::kWords;
  const Buffer buffer =
      device.allocate(static_cast<size_t>(words) * sizeof(int64_t), MemoryCategory::other);
  const TensorView sums = view_of(buffer, DType::int64, words);
  // 0: of the parameter; 1: of the direction.
  const auto sum_of = [](ParameterId id, int64_t which) {
    return (int64_t{id} * 2 + which) * ExactSum::kWords;
  };
  device.fill(stream, sums, 0.0F);
  for (const Bucket& bucket : buckets_) {
    if (!bucket.plan.trainable) continue;
    const std::vector<TensorView> views = acquire(bucket, stream);
    const TensorView direction = find_direction(bucket, step, views, 0);
    // At stage 0 each rank holds all of it, and adds its share only.
    for (const Interval& part : bucket.layout.shard_intervals(context_.comm.rank())) {
      const int64_t begin = part.offset - held_from(bucket);
      device.sum_of_squares(stream, views[0].slice(begin, part.numel),
                            sums.slice(sum_of(part.parameter, 0), ExactSum::kWords));
      device.sum_of_squares(stream, direction.slice(begin, part.numel),
                            sums.slice(sum_of(part.parameter, 1), ExactSum::kWords));
    }
    release(bucket, stream);
  }
  comm_stream.wait(stream.record());
  context_.comm.all_reduce(sums, sums, ReduceOp::sum, Output::overwrite, comm_stream,
                           "Lamb's norms");
  std::vector<int64_t> host(static_cast<size_t>(words));
  device.download(comm_stream, sums, host.data());
  comm_stream.synchronize();
  const auto norm = [&](ParameterId id, int64_t which) {
    const std::span all(host);
    return std::sqrt(
        ExactSum::from_words(all.subspan(static_cast<size_t>(sum_of(id, which)), ExactSum::kWords))
            .value());
  };
  for (const Bucket& bucket : buckets_) {
    if (!bucket.plan.trainable) continue;
    const std::vector<TensorView> views = acquire(bucket, stream);
    for (const Run& run : runs(bucket)) {
      const ParameterId id = run.first.parameter;
      device.update(
          stream, rule_of(bucket).lamb_scalars(step.count, step.of(run), norm(id, 0), norm(id, 1)),
          tensors_of(bucket, views, run));
    }
    release(bucket, stream);
    publish(bucket);
  }
}

// Muon's direction is a function of the whole matrix: every rank gathers those of the bucket, works
// out the ones that its shard intersects, and applies its part.
void ShardedOptimizer::muon_step(const Bucket& bucket, const Step& step, Stream& comm_stream) {
  Device& device = context_.device;
  Stream& stream = device.inline_stream();
  const Optimizer& rule = rule_of(bucket);
  const std::vector<TensorView> views = acquire(bucket, stream);
  const TensorView part = find_direction(bucket, step, views, held_from(bucket));
  const TensorView direction = view_of(direction_, DType::fp32, bucket.layout.padded_numel());
  if (context_.policy.shard_state) {
    comm_stream.wait(stream.record());
    context_.comm.all_gather(part, direction, Sync::collective, comm_stream, bucket.label);
    comm_stream.synchronize();
  }
  for (const Run& run : runs(bucket)) {
    const auto& shape = context_.specs[static_cast<size_t>(run.first.parameter)].shape;
    const TensorView matrix =
        direction.slice(run.first.offset - run.first.begin, shape[0] * shape[1]);
    device.orthogonalize(stream, matrix, shape[0], shape[1], rule.newton_schulz_steps(),
                         view_of(work_, DType::fp32, orthogonalize_work(shape[0], shape[1])));
    UpdateTensors tensors = tensors_of(bucket, views, run);
    tensors.grad = matrix.slice(run.first.begin, run.first.numel);
    tensors.states = {};
    device.update(stream, rule.muon_scalars(step.count, step.of(run), shape[0], shape[1]), tensors);
  }
  release(bucket, stream);
}

}  // namespace zerorun
