#include "tools/plan/simulation.h"
#include "zero/gradients/quantized_reduction.h"
#include "zero/parameters/quantized_gather.h"
#include "zero/partition/muon_rounds.h"

namespace zerorun {

namespace {

using Phase = StepCall::Phase;

class StepCalls {
 public:
  StepCalls(const ShardedModel& model, int host_ranks)
      : sharding_(model.sharding),
        buckets_(model.buckets),
        host_ranks_(host_ranks),
        sum_dtype_(host_ranks > 1 && !model.bounds_link ? DType::fp32
                                                        : sharding_.precision.comm_dtype),
        result_dtype_(model.bounds_link ? sharding_.precision.comm_dtype
                                        : sharding_.precision.accum_dtype) {
    for (const Bucket& bucket : buckets_) {
      if (bucket.plan.shard_params) gathered_ += bucket.layout.padded_numel();
    }
  }

  std::vector<StepCall> take() {
    for (int64_t micro = 0; micro < sharding_.accumulation_steps; ++micro) {
      micro_ = micro;
      // Buckets are in the order of backward.
      for (size_t i = buckets_.size(); i-- > 0;) gather(buckets_[i], Phase::forward);
      if (!buckets_.empty()) gather(buckets_.front(), Phase::backward);
      for (size_t i = 0; i < buckets_.size(); ++i) {
        if (i + 1 < buckets_.size()) gather(buckets_[i + 1], Phase::backward);
        reduce(buckets_[i]);
      }
    }
    if (sharding_.policy.shard_state) {
      for (const MuonRound& round : muon_rounds(sharding_, buckets_)) exchange_directions(round);
      for (const Bucket& bucket : buckets_) {
        if (bucket.plan.trainable && !bucket.plan.shard_params) gather_shards(bucket, Phase::step);
      }
    }
    return std::move(calls_);
  }

 private:
  CallRanks all() const { return {sharding_.place.shard_ranks, 1}; }
  static int64_t bytes_of(int64_t numel, DType dtype) {
    return numel * static_cast<int64_t>(size_of(dtype));
  }
  static int64_t nbytes(const Bucket& bucket, DType dtype) {
    return bytes_of(bucket.layout.padded_numel(), dtype);
  }
  void add(Collective op, CallRanks ranks, const Bucket& bucket, int64_t bytes, Phase phase,
           int64_t quantized = 0) {
    if (ranks.count == 1) return;
    calls_.push_back({.op = op,
                      .ranks = ranks,
                      .bytes = bytes,
                      .quantized = quantized,
                      .bucket = bucket.index,
                      .phase = phase,
                      .micro_step = micro_});
  }
  // Adds a reduction. `sum` and `result` are the dtypes in which sums and results are sent between
  // hosts of CPU ranks.
  void add_reduction(Collective op, CallRanks ranks, const Bucket& bucket, int64_t numel,
                     DType dtype, DType sum, DType result) {
    if (ranks.count == 1) return;
    add(op, ranks, bucket, bytes_of(numel, dtype), Phase::backward);
    calls_.back().sums = bytes_of(numel, sum);
    calls_.back().results = bytes_of(numel, result);
  }
  // True if all parameters may stay gathered until the next step.
  bool all_stay() const {
    const ZeroConfig& zero = sharding_.zero;
    return gathered_ <= zero.max_live_parameters && 2 * gathered_ <= zero.max_reuse_distance;
  }

  void gather(const Bucket& bucket, Phase phase) {
    const bool is_first = micro_ == 0 && phase == Phase::forward;
    if (!bucket.plan.shard_params || (!is_first && all_stay())) return;
    if (!is_first && sharding_.place.has_secondary()) {
      return add(Collective::all_gather, {sharding_.place.secondary_ranks, 1}, bucket,
                 nbytes(bucket, sharding_.precision.param_dtype), phase);
    }
    gather_shards(bucket, phase);
  }

  void gather_shards(const Bucket& bucket, Phase phase) {
    const int64_t plain = nbytes(bucket, sharding_.precision.param_dtype);
    if (!bucket.quantized_gather) return add(Collective::all_gather, all(), bucket, plain, phase);
    add(Collective::all_gather, all(), bucket,
        quantized_nbytes(bucket.layout.padded_numel(), QuantizedGather::kBits), phase,
        bytes_of(bucket.layout.shard_numel, sharding_.precision.param_dtype) + plain);
  }

  void reduce(const Bucket& bucket) {
    if (!bucket.plan.trainable) return;
    const int64_t numel = bucket.layout.padded_numel();
    const DType comm = sharding_.precision.comm_dtype;
    if (!sharding_.policy.shard_state) {
      return add_reduction(Collective::all_reduce, all(), bucket, numel, comm, sum_dtype_,
                           result_dtype_);
    }
    if (!sharding_.zero.quantized_gradients || !bucket.plan.quantized) {
      const DType partial = sharding_.precision.partial_dtype;
      add_reduction(Collective::reduce_scatter, all(), bucket, numel, comm, sum_dtype_, comm);
      return add_reduction(Collective::all_reduce,
                           {sharding_.place.replicas(), sharding_.place.shard_ranks}, bucket,
                           bucket.layout.shard_numel, partial, partial, partial);
    }
    if (sharding_.computes_on_host) {
      add_reduction(Collective::reduce_scatter, {host_ranks_, 1}, bucket, numel, comm, comm, comm);
    } else {
      exchange({host_ranks_, 1}, bucket, numel, QuantizedReduction::kBitsWithin);
    }
    exchange({sharding_.place.shard_ranks / host_ranks_, host_ranks_}, bucket, numel / host_ranks_,
             QuantizedReduction::bits_across(sharding_));
  }

  // Adds an all_to_all of quantized gradients. A rank's own slice stays as it is.
  void exchange(CallRanks ranks, const Bucket& bucket, int64_t numel, int bits) {
    const int64_t others = bytes_of(numel - numel / ranks.count, sharding_.precision.comm_dtype);
    add(Collective::all_to_all, ranks, bucket, quantized_nbytes(numel, bits), Phase::backward,
        2 * others);
  }

  // The directions of Muon's matrices go to their owners and back.
  void exchange_directions(const MuonRound& round) {
    for (const auto way : {&MuonShare::to_owners, &MuonShare::to_shards}) {
      for (const MuonShare& share : round.shares) {
        if (share.to_owners == nullptr) return;
        const Bucket& bucket = buckets_[static_cast<size_t>(share.bucket)];
        add(Collective::all_to_all, all(), bucket, bytes_of(bucket.layout.shard_numel, DType::fp32),
            Phase::step);
        calls_.back().cuts = share.*way;
        calls_.back().round = rounds_;
      }
      ++rounds_;
    }
  }

  const Sharding& sharding_;
  const std::vector<Bucket>& buckets_;
  const int host_ranks_;
  const DType sum_dtype_;
  const DType result_dtype_;
  int64_t gathered_ = 0;  // elements of the buckets at stage 3
  int64_t micro_ = 0;
  int rounds_ = 0;  // of Muon, either way
  std::vector<StepCall> calls_;
};

}  // namespace

std::vector<StepCall> step_calls(const ShardedModel& model, int host_ranks) {
  return StepCalls(model, host_ranks).take();
}

}  // namespace zerorun
